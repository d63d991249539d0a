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
{{- ternary (printf "%s/%s" (trimSuffix "/" $registry) .image.repository) .image.repository (ne $registry "") -}}
{{- end -}}

{{- define "mptraining.image" -}}
{{- $repository := include "mptraining.repository" (dict "global" .Values.global "image" .Values.image) -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The settings as the operator reads them: the images of jobs filled in where no setting names them. */}}
{{- define "mptraining.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if not $settings.trainerImage -}}
{{- $repository := include "mptraining.repository" (dict "global" .Values.global "image" .Values.trainer) -}}
{{- $tag := default .Chart.AppVersion .Values.trainer.tag -}}
{{- range $kind, $suffix := .Values.trainer.suffixes -}}
{{- if not (get $settings.trainerImages $kind) -}}
{{- $_ := set $settings.trainerImages $kind (printf "%s:%s%s" $repository $tag $suffix) -}}
{{- end -}}
{{- end -}}
{{- end -}}
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
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
seccompProfile:
  type: RuntimeDefault
{{- end -}}
