"""What a release consists of beside its images: the Helm chart, install.yaml, and one version."""
