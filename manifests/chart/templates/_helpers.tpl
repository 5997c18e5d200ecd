{{- /* Helm's labels. */}}
{{- define "sluice.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Labels of the operator's own objects. */}}
{{- define "sluice.operatorLabels" -}}
app.kubernetes.io/name: sluice-operator
app.kubernetes.io/part-of: sluice
{{ include "sluice.labels" . }}
{{- end }}

{{- /* An image's reference, of a list: the root, and the image's values. */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{- /* Where the pods of the chart run: the operator's, and those of its certificate. */}}
{{- define "sluice.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* "true" where specs are checked as they are applied. */}}
{{- define "sluice.admission" -}}
{{- if and (eq .Values.scope "Cluster") .Values.admission.enabled }}true{{ end -}}
{{- end }}
