{{/* The name of most objects. With `-metrics` behind it, it must still be a Service's: 63 characters. */}}
{{- define "mptraining.fullname" -}}
{{- default (printf "%s-operator" .Release.Name) .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the replicas: never changed, since a Deployment's selector cannot be. */}}
{{- define "mptraining.selector" -}}
app.kubernetes.io/name: mptraining-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of every object. The part of Helm itself it adds by itself. */}}
{{- define "mptraining.labels" -}}
{{ include "mptraining.selector" . }}
app.kubernetes.io/part-of: mptraining
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mptraining.serviceAccount" -}}
{{- default (include "mptraining.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The first registry that is named, and the repository. */}}
{{- define "mptraining.repository" -}}
{{- $registry := default .global.imageRegistry .image.registry -}}
{{- if and (eq $registry "") (hasPrefix "mptraining/" .image.repository) -}}
{{- fail (printf "global.imageRegistry: expected the HOST/PATH of the registry that has %s. Without one, nodes take it from Docker Hub, where the name is not this project's." .image.repository) -}}
{{- end -}}
{{- ternary (printf "%s/%s" (trimSuffix "/" $registry) .image.repository) .image.repository (ne $registry "") -}}
{{- end -}}

{{/* Of `root`, with the values `image`. */}}
{{- define "mptraining.imageOf" -}}
{{- $repository := include "mptraining.repository" (dict "global" .root.Values.global "image" .image) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "mptraining.image" -}}
{{- include "mptraining.imageOf" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{/* The settings with the defaults of those that the chart's own objects depend on. */}}
{{- define "mptraining.effective" -}}
{{- $progress := dict "enabled" true "port" 8443 "service" "mptraining-operator" -}}
{{- $defaults := dict "healthPort" 8080 "lease" (dict "name" "mptraining-operator") "progress" $progress -}}
{{- toYaml (mergeOverwrite $defaults (deepCopy .Values.settings)) -}}
{{- end -}}

{{/* The settings as the operator reads them: the images of the runtime `default` filled in where none is named. */}}
{{- define "mptraining.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $runtimes := default dict $settings.runtimes -}}
{{- $default := default dict (get $runtimes "default") -}}
{{- $images := default dict $default.images -}}
{{- $tag := default .Chart.AppVersion .Values.trainer.tag -}}
{{- range $kind, $suffix := dict "cpu" "" "gpu" "-gpu" "tpu" "-tpu" -}}
{{- if not (get $images $kind) -}}
{{- $repository := include "mptraining.repository" (dict "global" $.Values.global "image" $.Values.trainer) -}}
{{- $_ := set $images $kind (printf "%s:%s%s" $repository $tag $suffix) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "runtimes" (set $runtimes "default" (set $default "images" $images)) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* What every container of the chart is held to. */}}
{{- define "mptraining.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "mptraining.podSecurity" -}}
{{- toYaml .Values.podSecurityContext -}}
{{- end -}}
