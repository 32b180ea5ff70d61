{{/* Start of the names of all objects. Names of pods and their revisions must stay below 64 characters. */}}
{{- define "streampca.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of an object that belongs to no component. */}}
{{- define "streampca.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels, and selector, of the component `component` in the chart's `root`. */}}
{{- define "streampca.componentLabels" -}}
{{ include "streampca.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The variable's value, as a string. Large numbers must not become 1e+06. */}}
{{- define "streampca.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . | quote }}{{ else }}{{ toString . | quote }}{{ end }}
{{- end }}

{{/* The consumer group of the workers. */}}
{{- define "streampca.group" -}}
{{- .Values.settings.group_id | default (printf "streampca-%s" .Values.settings.topic) -}}
{{- end }}

{{/* The consumer group of `streampca transform`. */}}
{{- define "streampca.transformGroup" -}}
{{- .Values.settings.transform_group_id | default (printf "streampca-transform-%s" .Values.settings.topic) -}}
{{- end }}

{{/* Where the outputs of `streampca transform` go. */}}
{{- define "streampca.outputTopic" -}}
{{- .Values.settings.output_topic | default (printf "%s-projected" .Values.settings.topic) -}}
{{- end }}

{{/* Metadata of the pods of `component`. A change of the settings restarts them. */}}
{{- define "streampca.podMetadata" -}}
{{- $own := index .root.Values .component -}}
labels:
  {{- include "streampca.componentLabels" . | nindent 2 }}
  {{- with $own.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ include (print .root.Template.BasePath "/settings.yaml") .root | sha256sum }}
  {{- with $own.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The part of a pod's specification that the components share. */}}
{{- define "streampca.podSpec" -}}
{{- $own := index .root.Values .component -}}
serviceAccountName: {{ include "streampca.name" .root }}-{{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false  # its STREAMPCA_… variables are not settings
securityContext:
  {{- include "streampca.podSecurity" . | nindent 2 }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "streampca.componentLabels" $ | nindent 8 }}
  {{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
  {{- if not .root.Values.store.url }}
  - name: store
    persistentVolumeClaim:
      claimName: {{ .root.Values.store.disk.existingClaim | default (printf "%s-store" (include "streampca.name" .root)) }}
  {{- end }}
  {{- with $own.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $own.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The image, by its tag or its digest. */}}
{{- define "streampca.image" -}}
{{- $tagged := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- ternary (printf "%s@%s" .Values.image.repository .Values.image.digest) $tagged (ne .Values.image.digest "") -}}
{{- end }}

{{/* From where connections are allowed: the namespaces with these names, or all. */}}
{{- define "streampca.from" -}}
{{- if . -}}
[{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}]}}]
{{- else -}}
[{namespaceSelector: {}}]
{{- end }}
{{- end }}

{{/* The variables of all pods that are not secret. */}}
{{- define "streampca.variables" -}}
{{- $made := dict "group_id" (include "streampca.group" .) }}
{{- if .Values.transform.enabled }}
{{- $made = set $made "output_topic" (include "streampca.outputTopic" .) }}
{{- end }}
{{- range $name, $value := merge (dict) .Values.settings $made }}
STREAMPCA_{{ upper $name }}: {{ include "streampca.value" $value }}
{{- end }}
STREAMPCA_STORE: {{ .Values.store.url | default "/var/lib/streampca" | quote }}
{{- if .Values.store.url }}
{{- range $name, $value := .Values.store.environment }}
{{ $name }}: {{ include "streampca.value" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The security context of every pod. */}}
{{- define "streampca.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The security context of every container. */}}
{{- define "streampca.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The part of a container that the components share. */}}
{{- define "streampca.container" -}}
{{- $own := index .root.Values .component -}}
image: {{ include "streampca.image" .root }}
resources:
  {{- toYaml $own.resources | nindent 2 }}
securityContext:
  {{- include "streampca.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if not .root.Values.store.url }}
  - name: store
    mountPath: /var/lib/streampca
    {{- if eq .component "sidecar" }}
    readOnly: true
    {{- end }}
  {{- end }}
  {{- with $own.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
