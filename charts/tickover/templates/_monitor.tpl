{{/* What the Prometheus Operator's objects have in common. Takes this chart's context and the values' name. */}}
{{- define "tickover.monitorMetadata" -}}
{{- $ := .context -}}
{{- if not (include "tickover.reachable" $) }}
{{- fail (printf "%s needs an API that can be reached: set tokensSecret, settings.api.oidc or settings.api.allow_unauthenticated" .values) }}
{{- end -}}
name: {{ include "tickover.name" $ }}
labels:
  {{- include "tickover.labels" $ | nindent 2 }}
  {{- with (index $.Values .values).labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tickover.monitorEndpoint" -}}
{{- $monitor := index .context.Values .values -}}
path: /metrics
interval: {{ $monitor.interval }}
scheme: {{ include "tickover.scheme" .context }}
{{- with $monitor.tokenSecret }}
{{- if .name }}
authorization:
  credentials:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}
