{{/* Names and labels. */}}
{{- define "supervisor.labels" -}}
app.kubernetes.io/name: grid-supervisor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "supervisor.commonLabels" -}}
{{ include "supervisor.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "supervisor.serviceAccount" -}}
{{ if .Values.serviceAccount.create }}{{ .Release.Name }}-supervisor{{ else }}default{{ end }}
{{- end }}

{{- define "supervisor.databaseSecret" -}}
{{ if .Values.postgres.enabled }}{{ required "postgres.existingSecret" .Values.postgres.existingSecret }}{{ else }}{{ required "database.existingSecret, or postgres.enabled" .Values.database.existingSecret }}{{ end }}
{{- end }}

{{- define "supervisor.brokerSecret" -}}
{{ if .Values.redis.enabled }}{{ required "redis.existingSecret" .Values.redis.existingSecret }}{{ else }}{{ required "broker.existingSecret, or redis.enabled" .Values.broker.existingSecret }}{{ end }}
{{- end }}

{{/* The database's URL, and the files of its TLS, which libpq finds by these variables: a JSON list of (secret, key, variable). */}}
{{- define "supervisor.database" -}}
{{- $files := list (dict "secret" .url "key" "database_url" "variable" "DATABASE_URL_FILE") }}
{{- if and .root.Values.postgres.enabled .root.Values.database.tlsKeys }}
{{- fail "database.tlsKeys: found some with postgres.enabled; expected none: the chart's own Postgres has no TLS" }}
{{- end }}
{{- $variables := dict "database_ca" "PGSSLROOTCERT" "database_cert" "PGSSLCERT" "database_key" "PGSSLKEY" }}
{{- range .keys }}
{{- $files = append $files (dict "secret" $.root.Values.database.existingSecret "key" . "variable" (get $variables .)) }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* The broker's URL, and the files of its TLS: a JSON list of (secret, key, variable). */}}
{{- define "supervisor.broker" -}}
{{- $files := list (dict "secret" (include "supervisor.brokerSecret" .) "key" "broker_url" "variable" "BROKER_URL_FILE") }}
{{- if and .Values.redis.enabled .Values.broker.tlsKeys }}
{{- fail "broker.tlsKeys: found some with redis.enabled; expected none: the chart's own Redis has no TLS" }}
{{- end }}
{{- range .Values.broker.tlsKeys }}
{{- $files = append $files (dict "secret" $.Values.broker.existingSecret "key" . "variable" (upper .)) }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* Where KEDA, which has a namespace of its own, finds the broker, and the Secret with the password. */}}
{{- define "supervisor.kedaAddress" -}}
{{ if .Values.keda.redisAddress }}{{ .Values.keda.redisAddress }}{{ else if .Values.redis.enabled }}{{ printf "%s-redis.%s.svc:6379" .Release.Name .Release.Namespace }}{{ else }}{{ fail "keda.redisAddress, or redis.enabled" }}{{ end }}
{{- end }}

{{- define "supervisor.kedaPassword" -}}
{{ if .Values.keda.passwordSecret }}{{ .Values.keda.passwordSecret }}{{ else if .Values.redis.enabled }}{{ .Values.redis.existingSecret }}{{ else }}{{ fail "keda.passwordSecret, or redis.enabled" }}{{ end }}
{{- end }}

{{- define "supervisor.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "supervisor.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "supervisor.image" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{- define "supervisor.mounts" -}}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets/supervisor, readOnly: true}
  - {name: state, mountPath: /var/lib/supervisor}
{{- end }}

{{/* The settings of a cluster as environment variables: the last one counts. `merge` would take false and "" for not given. */}}
{{- define "supervisor.settings" -}}
{{- $ours := ternary (dict "FLOWER_URL" (printf "http://%s-flower:5555" .root.Release.Name)) dict .root.Values.flower.enabled }}
{{- $settings := dict }}
{{- range $given := list $ours .root.Values.settings (.cluster.settings | default dict) }}
{{- range $name, $value := $given }}
{{- $_ := set $settings $name ($value | toString) }}
{{- end }}
{{- end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Ends with an error where a cluster has no value of a setting whose default is of no use in a pod, such as an address of the pod itself. */}}
{{- define "supervisor.demandSettings" -}}
{{- $demanded := list "PUBLIC_ADDRESS" "SBATCH_ENDPOINT" }}
{{- if .cluster.jwtKey }}
{{- $demanded = concat $demanded (list "SLURM_TRANSPORT" "SLURMRESTD_URL") }}
{{- else }}
{{- $demanded = concat $demanded (list "SLURM_SSH_ADDRESS" "SLURM_SSH_ADMIN_USER") }}
{{- end }}
{{- if .cluster.sshCa }}
{{- $demanded = append $demanded "SLURM_SSH_CERTIFICATES" }}
{{- end }}
{{- $settings := include "supervisor.settings" . | fromYaml }}
{{- $missing := list }}
{{- range $demanded }}
{{- if not (get $settings .) }}
{{- $missing = append $missing . }}
{{- end }}
{{- end }}
{{- if $missing }}
{{- fail (printf "clusters: found no %s in the settings of %s; expected a value of each, as no default is of use in a pod; write it into this cluster's settings, or for all clusters into the common settings" (join " and no " $missing) .cluster.name) }}
{{- end }}
{{- end }}

{{/*
The pod of a process. `.process` is its word after `supervisor run`, `.args` its options, `.secrets` a list of (secret, key, variable):
each is a file that the variable with _FILE names. `.port` is the probes' port; 0: none, or that of the metrics (`.answers`). With `.waits` it starts when the
ledger's tables are there. `.serviceAccount` is for a pod that comes before ours.
*/}}
{{- define "supervisor.pod" -}}
{{- $values := .root.Values -}}
serviceAccountName: {{ .serviceAccount | default (include "supervisor.serviceAccount" .root) }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
securityContext: {{- include "supervisor.podSecurity" . | nindent 2 }}
{{- with $values.image.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .restart }}
restartPolicy: {{ .restart }}
{{- end }}
{{- if .waits }}
initContainers:
  - name: wait  # for the tables that this version works with: its log tells which are missing
    {{- include "supervisor.image" . | nindent 4 }}
    args: [wait]
    securityContext: {{- include "supervisor.containerSecurity" . | nindent 6 }}
    resources: {{- toYaml .resources | nindent 6 }}
    env:
      - {name: CLUSTER_NAME, valueFrom: {configMapKeyRef: {name: {{ .config }}, key: CLUSTER_NAME}}}
      {{- range .secrets }}
      {{- if hasPrefix "database_" .key }}
      - {name: {{ .variable }}, value: /run/secrets/supervisor/{{ .key }}}
      {{- end }}
      {{- end }}
    {{- include "supervisor.mounts" . | nindent 4 }}
{{- end }}
containers:
  - name: {{ .process }}
    {{- include "supervisor.image" . | nindent 4 }}
    args: {{- prepend .args .process | toYaml | nindent 6 }}
    securityContext: {{- include "supervisor.containerSecurity" . | nindent 6 }}
    resources: {{- toYaml .resources | nindent 6 }}
    {{- if or .ports .port }}
    ports:
      {{- if .port }}
      - {name: probes, containerPort: {{ .port }}}
      {{- end }}
      {{- with .ports }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
    {{- if .config }}
    envFrom:
      - configMapRef: {name: {{ .config }}}
    {{- end }}
    env:
      {{- if .port }}
      - {name: HEALTH_ADDRESS, value: ":{{ .port }}"}
      {{- end }}
      {{- range .env }}
      - {{ toYaml . | nindent 8 | trim }}
      {{- end }}
      {{- range .secrets }}
      - {name: {{ .variable }}, value: /run/secrets/supervisor/{{ .key }}}
      {{- end }}
    {{- with .port | default .answers }}
    startupProbe: {httpGet: {path: /livez, port: {{ . }}}, periodSeconds: 5, failureThreshold: 60}
    livenessProbe: {httpGet: {path: /livez, port: {{ . }}}, periodSeconds: 10, failureThreshold: 3}
    readinessProbe: {httpGet: {path: /readyz, port: {{ . }}}, periodSeconds: 5, failureThreshold: 2}
    {{- end }}
    {{- include "supervisor.mounts" . | nindent 4 }}
volumes:
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- range .secrets }}
        - secret: {name: {{ .secret }}, items: [{key: {{ .source | default .key }}, path: {{ .key }}}]}
        {{- end }}
  # STATE_DIR, HOME and TMPDIR of the image. In memory, it has the sticky bit, which a state folder's parent needs.
  - {name: state, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
{{- end }}
