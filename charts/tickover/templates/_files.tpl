{{/* The two files of the ConfigMap: settings with what the chart says itself, and policies. */}}
{{- define "tickover.files" -}}
{{- $api := dict "probe_port" (include "tickover.probePort" . | int) "probe_host" (include "tickover.probeHost" .) -}}
{{- if and (include "tickover.reachable" .) (not (dig "api" "host" "" .Values.settings)) }}{{- $_ := set $api "host" "::" }}{{- end -}}
{{- if .Values.tokensSecret }}{{- $_ := set $api "tokens_file" "/etc/tickover-tokens/tokens.yaml" }}{{- end -}}
{{- $own := dict "api" $api -}}
{{- if .Values.policies }}{{- $_ := set $own "policies" (dict "file" "/etc/tickover/policies.yaml") }}{{- end -}}
tickover.yaml: |
  {{- mergeOverwrite (deepCopy .Values.settings) $own | toYaml | nindent 2 }}
policies.yaml: |
  {{- range .Values.policies }}
  ---
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
