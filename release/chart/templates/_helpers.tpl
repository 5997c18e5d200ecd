{{- define "sluice.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* An image's reference, of a list: the root, and the image's values. */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}
