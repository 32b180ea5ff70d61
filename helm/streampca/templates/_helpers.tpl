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

{{/* What selects the pods of the component `component` in the chart's `root`. It cannot change. */}}
{{- define "streampca.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of an object, of a component or of none; `labels` are more. */}}
{{- define "streampca.labels" -}}
{{- $own := dict "app.kubernetes.io/name" .root.Chart.Name "app.kubernetes.io/instance" .root.Release.Name }}
{{- $own = merge $own (dict "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/version" .root.Chart.AppVersion) }}
{{- $own = merge $own (dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")) }}
{{- with .component }}
{{- $own = merge $own (dict "app.kubernetes.io/component" .) }}
{{- end }}
{{- toYaml (merge $own (.labels | default dict) .root.Values.commonLabels) }}
{{- end }}

{{/* Metadata of the component's object of a kind. */}}
{{- define "streampca.metadata" -}}
name: {{ include "streampca.name" .root }}-{{ .component }}
labels:
  {{- include "streampca.labels" . | nindent 2 }}
{{- end }}

{{/* The variable's value, as a string. Large numbers must not become 1e+06. */}}
{{- define "streampca.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ toString . }}{{ end }}
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
{{- $made = set $made "store" (.Values.store.url | default "/var/lib/streampca") }}
{{- $variables := dict }}
{{- range $name, $value := merge (dict) .Values.settings $made }}
{{- $_ := set $variables (print "STREAMPCA_" (upper $name)) $value }}
{{- end }}
{{- range $name, $value := mergeOverwrite $variables (include "streampca.environment" . | fromYaml) }}
{{ $name }}: {{ include "streampca.value" $value | quote }}
{{- end }}
{{- end }}

{{/* The variables of all pods that are no settings. */}}
{{- define "streampca.environment" -}}
{{- $provider := ternary .Values.store.environment dict (ne .Values.store.url "") }}
{{- toYaml (merge (dict) .Values.environment $provider) }}
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

{{/*
The template of the component's pods, with the specification that the template named `spec` makes, and podSpec of all pods
and of the component merged into it. A change of the settings restarts them. The pods of a job are `like` a worker's.
*/}}
{{- define "streampca.pod" -}}
{{- $own := index .root.Values (.like | default .component) -}}
{{- $spec := include .spec . | fromYaml }}
{{- range list .root.Values.podSpec $own.podSpec }}
{{- $spec = include "streampca.merge" (dict "base" $spec "over" .) | fromYaml }}
{{- end -}}
metadata:
  labels:
    {{- merge (include "streampca.selector" . | fromYaml) $own.podLabels .root.Values.commonLabels | toYaml | nindent 4 }}
  annotations:
    checksum/settings: {{ include "streampca.variables" .root | sha256sum }}
    {{- with $own.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- toYaml $spec | nindent 2 }}
{{- end }}

{{/* The map `base` with `over` merged into it: null removes a field, and items of lists are merged by their names. */}}
{{- define "streampca.merge" -}}
{{- $merged := .base }}
{{- range $field, $new := .over }}
{{- $old := get $merged $field }}
{{- $by := ternary "mountPath" "name" (eq $field "volumeMounts") }}
{{- if kindIs "invalid" $new }}
{{- $_ := unset $merged $field }}
{{- else if and (kindIs "map" $old) (kindIs "map" $new) }}
{{- $_ := set $merged $field (include "streampca.merge" (dict "base" $old "over" $new) | fromYaml) }}
{{- else if and (kindIs "slice" $old) (kindIs "slice" $new) $old $new (kindIs "map" (first $old)) (hasKey (first $old) $by) }}
{{- $items := dict }}
{{- range $item := concat $old $new }}
{{- $base := get $items (get $item $by) | default dict }}
{{- $_ := set $items (get $item $by) (include "streampca.merge" (dict "base" $base "over" $item) | fromYaml) }}
{{- end }}
{{- $ordered := list }}
{{- range $item := concat $old $new }}
{{- $ordered = append $ordered (get $items (get $item $by)) }}
{{- end }}
{{- $_ := set $merged $field (uniq $ordered) }}
{{- else }}
{{- $_ := set $merged $field $new }}
{{- end }}
{{- end }}
{{- toYaml $merged }}
{{- end }}

{{/* The part of a pod's specification that all share. The job of the topics comes before any object of the release. */}}
{{- define "streampca.podSpec" -}}
{{- $own := index .root.Values (.like | default .component) -}}
serviceAccountName: {{ include "streampca.name" .root }}-{{ .account | default .component }}
automountServiceAccountToken: false
enableServiceLinks: false  # its STREAMPCA_… variables are not settings
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
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
        {{- include "streampca.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* The part of a container that all share. */}}
{{- define "streampca.container" -}}
{{- $own := index .root.Values (.like | default .component) -}}
{{ include "streampca.image" . }}
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

{{/* The component's image, by its tag or its digest, and when it is pulled. */}}
{{- define "streampca.image" -}}
{{- $image := .root.Values.image -}}
{{- if and (eq .component "sidecar") .root.Values.sidecar.image.repository }}{{ $image = .root.Values.sidecar.image }}{{ end -}}
{{- $tagged := printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) -}}
image: {{ ternary (printf "%s@%s" $image.repository $image.digest) $tagged (ne $image.digest "") }}
{{- with $image.pullPolicy | default .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}
