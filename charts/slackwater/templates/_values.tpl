{{- /*
Fills in what .Values lacks, and checks what the schema cannot. Each template includes it first.

`helm upgrade --reuse-values` renders this chart with the values of the release's chart: what is new here is missing
there. The defaults come from files/defaults.yaml. What a user may take away by null (resources, security contexts) is
not among them.
*/ -}}
{{- define "slackwater.values" -}}
{{- include "slackwater.checkNames" . -}}
{{- include "slackwater.fill" (dict "values" .Values "defaults" (.Files.Get "files/defaults.yaml" | fromYaml)) -}}
{{- include "slackwater.checkBudget" . -}}
{{- include "slackwater.checkScrape" . -}}
{{- end -}}

{{- define "slackwater.fill" -}}
{{- $values := .values -}}
{{- range $key, $default := .defaults -}}
{{- if not (hasKey $values $key) -}}
{{- $_ := set $values $key $default -}}
{{- else if kindIs "map" $default -}}
{{- include "slackwater.fill" (dict "values" (get $values $key) "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Names of other charts for what this one has; the schema lets them through, so that the error can name ours. */ -}}
{{- define "slackwater.checkNames" -}}
{{- $ours := dict
  "installCRDs" "crds.enabled"
  "serviceMonitor" "podMonitor.enabled (a PodMonitor, as the operator needs no Service)"
  "metrics" "podMonitor.enabled, and prometheusRule.enabled for the alerts"
  "replicas" "replicaCount"
  "watchNamespace" "watchNamespaces, a list"
  "webhook" "admissionWebhook"
  "env" "extraEnv" -}}
{{- range $name, $our := $ours -}}
{{- if hasKey $.Values $name -}}
{{- fail (printf "%s: this chart's value is %s" $name $our) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slackwater.checkBudget" -}}
{{- $replicas := int .Values.replicaCount -}}
{{- $budget := .Values.podDisruptionBudget.maxUnavailable -}}
{{- $away := int $budget -}}
{{- if kindIs "string" $budget -}}
{{- /* Kubernetes rounds a share up. */ -}}
{{- $away = div (add (mul (trimSuffix "%" $budget | int) $replicas) 99) 100 | int -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled (gt $replicas 1) (ge $away $replicas) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable: %v lets a drain stop all %d operators at once; give less than replicaCount" $budget $replicas) -}}
{{- end -}}
{{- end -}}

{{- define "slackwater.checkScrape" -}}
{{- $interval := include "slackwater.milliseconds" .Values.podMonitor.interval | int -}}
{{- $timeout := include "slackwater.milliseconds" .Values.podMonitor.scrapeTimeout | int -}}
{{- if gt $timeout $interval -}}
{{- fail (printf "podMonitor.scrapeTimeout: %s is longer than podMonitor.interval, %s; Prometheus refuses that" .Values.podMonitor.scrapeTimeout .Values.podMonitor.interval) -}}
{{- end -}}
{{- end -}}

{{- /* A duration of Prometheus, such as 1m30s. */ -}}
{{- define "slackwater.milliseconds" -}}
{{- $total := 0 -}}
{{- $unit := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $total = add $total (mul (regexFind "[0-9]+" . | int) (get $unit (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}
