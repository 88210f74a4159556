{{- define "slackwater.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "slackwater.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "slackwater.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of the webhook's Service, Secret, roles and ValidatingWebhookConfiguration. */ -}}
{{- define "slackwater.webhookName" -}}
{{- include "slackwater.fullname" . }}-webhook
{{- end -}}

{{- define "slackwater.selectorLabels" -}}
app.kubernetes.io/name: slackwater-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "slackwater.labels" -}}
{{ include "slackwater.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: slackwater
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /*
The metadata of an object of the chart, with the labels and annotations of all objects.

Takes (dict "root" . "name" NAME) and, where the object has them, "namespace", "labels" and "annotations": its own ones
come before those of all.
*/ -}}
{{- define "slackwater.metadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- merge (dict) (default (dict) .labels) (include "slackwater.labels" .root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "slackwater.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "slackwater.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /*
An image by its digest, else its tag, else the chart's version. Takes (dict "image" ... "root" .).

The repository's first part is a registry if it has a dot or a port, or is localhost, as for container engines.
*/ -}}
{{- define "slackwater.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $first := splitList "/" $repository | first -}}
{{- if and (contains "/" $repository) (or (contains "." $first) (contains ":" $first) (eq "localhost" $first)) -}}
{{- $repository = trimPrefix (printf "%s/" $first) $repository -}}
{{- end -}}
{{- $repository = printf "%s/%s" . $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* The names of image pull Secrets, the global ones first, as a list of a pod. */ -}}
{{- define "slackwater.imagePullSecrets" -}}
{{- $names := list -}}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets -}}
{{- if kindIs "map" . -}}
{{- $names = append $names .name -}}
{{- else -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
{{ end -}}
{{- end -}}

{{- /* What the operator may do to a group and its objects: see docs/design/operator.md, "What it may do". */ -}}
{{- define "slackwater.groupRules" -}}
- apiGroups: [slackwater.dev]
  resources: [consumergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [slackwater.dev]
  resources: [consumergroups/status]
  verbs: [patch]
- apiGroups: [slackwater.dev]
  resources: [consumergroups/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, list, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch]
{{- end -}}

{{- /* DNS, wherever the cluster has it. */ -}}
{{- define "slackwater.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- /* Egress to TCP ports. Takes (dict "ports" [...] "to" [...]). */ -}}
{{- define "slackwater.portEgress" -}}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
