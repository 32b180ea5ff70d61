{{/* Start of the names of all objects. Names of pods and their revisions must stay below 64 characters. */}}
{{- define "streampca.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The components with a port, space-separated: members, which have a group and brokers, and sidecars. */}}
{{- define "streampca.members" -}}
worker{{ if .Values.transform.enabled }} transform{{ end }}
{{- end }}
{{- define "streampca.components" -}}
sidecar {{ include "streampca.members" . }}
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

{{/* Metadata of the component's object of a kind. */}}
{{- define "streampca.metadata" -}}
name: {{ include "streampca.name" .root }}-{{ .component }}
labels:
  {{- include "streampca.componentLabels" . | nindent 2 }}
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

{{/* The variables of all pods that are not secret. */}}
{{- define "streampca.variables" -}}
{{- $made := dict "group_id" (include "streampca.group" .) }}
{{- if .Values.transform.enabled }}
{{- $made = set $made "output_topic" (include "streampca.outputTopic" .) }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $made = set $made "tls_folder" "/etc/streampca/tls" }}
{{- end }}
{{- if .Values.tokens.secret }}
{{- $made = set $made "tokens_file" "/etc/streampca/tokens/tokens" }}
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

{{/* The name and the number of a component's port. */}}
{{- define "streampca.portName" -}}{{ ternary "http" "metrics" (eq . "sidecar") }}{{- end }}
{{- define "streampca.port" -}}{{ get (dict "sidecar" 8000 "worker" 8010 "transform" 8020) . }}{{- end }}

{{/* The protocol of all ports. */}}
{{- define "streampca.scheme" -}}{{ ternary "https" "http" (ne .Values.tls.secret "") }}{{- end }}

{{/* A probe of the component, by its `path`. */}}
{{- define "streampca.probe" -}}
httpGet: {path: {{ .path }}, port: {{ include "streampca.portName" .component }}, scheme: {{ include "streampca.scheme" .root | upper }}}
timeoutSeconds: 5
{{- end }}

{{/* Metadata of the component's pods. A change of the settings restarts them. Those of a job are like those of a worker. */}}
{{- define "streampca.podMetadata" -}}
{{- $own := index .root.Values (.like | default .component) -}}
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

{{/* The part of a pod's specification that all share. The job of the topics comes before any object of the release. */}}
{{- define "streampca.podSpec" -}}
{{- $own := index .root.Values (.like | default .component) -}}
{{- if ne .component "topics" -}}
serviceAccountName: {{ include "streampca.name" .root }}-{{ .like | default .component }}
{{ end -}}
automountServiceAccountToken: false
enableServiceLinks: false  # its STREAMPCA_… variables are not settings
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
  {{- if ne .component "topics" }}
  {{- if not .root.Values.store.url }}
  - name: store
    persistentVolumeClaim:
      claimName: {{ .root.Values.store.disk.existingClaim | default (printf "%s-store" (include "streampca.name" .root)) }}
  {{- end }}
  {{- with .root.Values.tls.secret }}
  - name: tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with .root.Values.tokens.secret }}
  - name: tokens
    secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: tokens, path: tokens}]}
  {{- end }}
  {{- end }}
  {{- with concat $own.volumes (.volumes | default list) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $own.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* How the pods of a Deployment or StatefulSet are spread. */}}
{{- define "streampca.spread" -}}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "streampca.componentLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* The part of a container that all share. */}}
{{- define "streampca.container" -}}
{{- $own := index .root.Values (.like | default .component) -}}
image: {{ include "streampca.image" . }}
{{- if ne .component "topics" }}
envFrom:
  - configMapRef: {name: {{ include "streampca.name" .root }}}
  {{- if ne .component "sidecar" }}
  - secretRef: {name: {{ .root.Values.secret }}, optional: true}
  {{- end }}
  - secretRef: {name: {{ .root.Values.store.secret }}, optional: true}
{{- end }}
resources:
  {{- toYaml (.resources | default $own.resources) | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if ne .component "topics" }}
  {{- if not .root.Values.store.url }}
  - {name: store, mountPath: /var/lib/streampca, readOnly: {{ eq .component "sidecar" }}}
  {{- end }}
  {{- if .root.Values.tls.secret }}
  - {name: tls, mountPath: /etc/streampca/tls, readOnly: true}
  {{- end }}
  {{- if .root.Values.tokens.secret }}
  - {name: tokens, mountPath: /etc/streampca/tokens, readOnly: true}
  {{- end }}
  {{- end }}
  {{- with concat $own.volumeMounts (.volumeMounts | default list) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The component's image, by its tag or its digest. */}}
{{- define "streampca.image" -}}
{{- $image := .root.Values.image -}}
{{- if and (eq .component "sidecar") .root.Values.sidecar.image.repository }}{{ $image = .root.Values.sidecar.image }}{{ end -}}
{{- $tagged := printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) -}}
{{- ternary (printf "%s@%s" $image.repository $image.digest) $tagged (ne $image.digest "") -}}
{{- end }}
