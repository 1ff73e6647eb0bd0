{{/*
What a pod needs to run tickover. Each takes this chart's own context: from a chart that depends on it `.Subcharts.tickover`.

  tickover.podLabels        by these the PodMonitor finds the pods
  tickover.podAnnotations   a change of settings or policies changes them, so pods are replaced
  tickover.initContainers   the native sidecar; empty where it is a plain container
  tickover.containers       the plain container; empty where it is a native sidecar
  tickover.volumes          what they mount
*/}}

{{- define "tickover.podLabels" -}}
tickover: {{ include "tickover.name" . }}
{{- end }}

{{- define "tickover.podAnnotations" -}}
checksum/tickover: {{ include "tickover.files" . | sha256sum }}
{{- end }}

{{- define "tickover.initContainers" -}}
{{- if include "tickover.native" . }}
- {{ include "tickover.container" (dict "context" . "restartPolicy" "Always" "stableName" .Values.sidecar.stablePodNames) | indent 2 | trim }}
{{- end }}
{{- end }}

{{- define "tickover.containers" -}}
{{- if not (include "tickover.native" .) }}
- {{ include "tickover.container" (dict "context" . "stableName" .Values.sidecar.stablePodNames) | indent 2 | trim }}
{{- end }}
{{- end }}

{{- define "tickover.volumes" -}}
- name: tickover-config
  configMap:
    name: {{ include "tickover.name" . }}
- name: tickover-data
  emptyDir: {}
- name: tickover-tmp
  emptyDir: {}
{{- if .Values.tokensSecret }}
- name: tickover-tokens
  secret:
    secretName: {{ .Values.tokensSecret }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tickover.container" -}}
{{- $ := .context -}}
{{- $port := include "tickover.port" $ -}}
name: tickover
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
image: {{ include "tickover.image" $ | quote }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
{{- include "tickover.environment" $ }}
  {{- if .stableName }}
  # The pod's name stays over a restart: its partitions come back to it without a rebalance.
  - name: TICKOVER_INSTANCE_ID
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  {{- end }}
ports:
  - name: tickover
    containerPort: {{ $port }}
# A start that waits for Kafka lives, so nobody ends it but settings.start_timeout.
startupProbe:
  {{- if .restartPolicy }}
  # The containers of your own begin when a native sidecar has started.
  {{- include "tickover.probe" (dict "context" $ "path" "/livez?started=true") | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 1800
  {{- else }}
  {{- include "tickover.probe" (dict "context" $ "path" "/livez") | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 60
  {{- end }}
livenessProbe:
  {{- include "tickover.probe" (dict "context" $ "path" "/livez") | nindent 2 }}
  periodSeconds: 10
readinessProbe:
  {{- include "tickover.probe" (dict "context" $ "path" "/readyz") | nindent 2 }}
  periodSeconds: 10
{{- include "tickover.securityContext" $ }}
resources:
  {{- toYaml $.Values.resources | nindent 2 }}
{{- include "tickover.volumeMounts" $ }}
{{- end }}

{{- define "tickover.probe" -}}
{{- $host := include "tickover.probeHost" .context -}}
httpGet:
  path: {{ .path }}
  port: {{ include "tickover.probePort" .context }}
  {{- if not (has $host (list "::" "0.0.0.0")) }}
  host: {{ $host | quote }}
  {{- end }}
timeoutSeconds: 5
{{- end }}

{{- define "tickover.environment" }}
env:
  - name: TICKOVER_CONFIG
    value: /etc/tickover/tickover.yaml
  - name: TICKOVER_DATA_DIR
    value: /var/lib/tickover
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tickover.securityContext" }}
{{- with .Values.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAsUser }}
  runAsUser: {{ int64 . }}
  runAsGroup: {{ int64 . }}
  {{- end }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "tickover.volumeMounts" }}
volumeMounts:
  - name: tickover-config
    mountPath: /etc/tickover
    readOnly: true
  - name: tickover-data
    mountPath: /var/lib/tickover
  - name: tickover-tmp
    mountPath: /tmp
  {{- if .Values.tokensSecret }}
  - name: tickover-tokens
    mountPath: /etc/tickover-tokens
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
