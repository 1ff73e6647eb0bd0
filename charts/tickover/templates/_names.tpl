{{- define "tickover.name" -}}
{{- $own := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{ default $own .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "tickover.selector" -}}
app.kubernetes.io/name: tickover
app.kubernetes.io/instance: {{ include "tickover.name" . }}
{{- end }}

{{- define "tickover.labels" -}}
{{ include "tickover.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tickover.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "tickover.port" -}}
{{ dig "api" "port" 8230 .Values.settings }}
{{- end }}

{{- define "tickover.scheme" -}}
{{ dig "api" "tls" "certificate_file" "" .Values.settings | empty | ternary "http" "https" }}
{{- end }}

{{/* The probes have a listener of their own: what callers do to the API makes no healthy pod look dead. */}}
{{- define "tickover.probePort" -}}
{{ dig "api" "probe_port" 8231 .Values.settings }}
{{- end }}

{{/* The kubelet asks from outside the pod. What is answered there names nothing and nobody. */}}
{{- define "tickover.probeHost" -}}
{{ dig "api" "probe_host" "::" .Values.settings | trimPrefix "[" | trimSuffix "]" }}
{{- end }}

{{/* Not empty when callers are known, or all may do everything: only then the API listens beyond the pod. */}}
{{- define "tickover.reachable" -}}
{{- $api := dig "api" dict .Values.settings -}}
{{- if or .Values.tokensSecret (dig "oidc" "issuer" "" $api) (dig "allow_unauthenticated" false $api) -}}true{{- end -}}
{{- end }}

{{/* Not empty for a native sidecar. */}}
{{- define "tickover.native" -}}
{{- $new := semverCompare ">=1.29.0-0" .Capabilities.KubeVersion.Version -}}
{{- if or (eq .Values.sidecar.kind "native") (and (eq .Values.sidecar.kind "auto") $new) -}}true{{- end -}}
{{- end }}
