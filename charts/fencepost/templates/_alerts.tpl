{{- /* The alerts of files/alerts.yaml, with what the values change in them. */ -}}

{{- /* The numbers in their expressions that values may change: the name of each, the alert that it
belongs to, its text there, and other alerts that repeat it. */ -}}
{{- define "fencepost.thresholds" -}}
- { alert: FencepostTokensReset, name: resources, text: ">= 20", also: [FencepostStaleRequests] }
- { alert: FencepostTokensReset, name: share, text: "> 0.25", also: [FencepostStaleRequests] }
- { alert: FencepostStaleRequests, name: share, text: "> 0.05" }
- { alert: FencepostStaleRequests, name: requests, text: ">= 10" }
- { alert: FencepostTokensMissing, name: share, text: "> 0.05" }
- { alert: FencepostTokensMissing, name: requests, text: ">= 10" }
- { alert: FencepostUnknownOutcomes, name: requests, text: ">= 3" }
- { alert: FencepostUnknownOutcomes, name: share, text: "> 0.005" }
- { alert: FencepostOlderInFlight, name: share, text: "> 0.05" }
- { alert: FencepostOlderInFlight, name: requests, text: ">= 5" }
- { alert: FencepostBarrierWaits, name: seconds, text: "> 1" }
- { alert: FencepostBarrierWaits, name: requests, text: ">= 20" }
- { alert: FencepostUpstreamUnreachable, name: share, text: "> 0.05" }
- { alert: FencepostUpstreamUnreachable, name: requests, text: ">= 5" }
- { alert: FencepostLimitReached, name: requests, text: ">= 10" }
- { alert: FencepostMarksGone, name: share, text: "< 0.5" }
- { alert: FencepostMarksGrow, name: marks, text: "> 100000" }
- { alert: FencepostMarksGrow, name: share, text: "> 0.1" }
- { alert: FencepostStoreErrors, name: errors, text: ">= 3" }
- { alert: FencepostStoreUnavailable, name: share, text: "> 0.05" }
- { alert: FencepostStoreUnavailable, name: requests, text: ">= 5" }
- { alert: FencepostConfigurationsDiffer, name: configurations, text: "> 1" }
- { alert: FencepostCertificateExpires, name: seconds, text: "< 604800" }
- { alert: FencepostCertificateExpiresNow, name: seconds, text: "< 86400" }
{{- end -}}

{{- /* The spec of the PrometheusRule. */ -}}
{{- define "fencepost.rules" -}}
{{- $rule := .Values.metrics.prometheusRule -}}
{{- $changes := $rule.alerts | default dict -}}
{{- $base := .Values.metrics.runbookBaseUrl | default "" | trimSuffix "/" -}}
{{- $thresholds := include "fencepost.thresholds" . | fromYamlArray -}}
{{- $groups := list -}}
{{- range $group := (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $one := $group.rules -}}
{{- if hasKey $one "record" -}}
{{- $rules = append $rules $one -}}
{{- else -}}
{{- $change := get $changes $one.alert | default dict -}}
{{- if ne (toString (dig "enabled" true $change)) "false" -}}
{{- range $threshold := $thresholds -}}
{{- if or (eq $one.alert $threshold.alert) (has $one.alert ($threshold.also | default list)) -}}
{{- $wanted := dig $threshold.alert "thresholds" $threshold.name nil $changes -}}
{{- if not (kindIs "invalid" $wanted) -}}
{{- $sign := regexFind "^[<>=]+" $threshold.text -}}
{{- /* JSON, because a large float would be written with an exponent. */ -}}
{{- $_ := set $one "expr" (regexReplaceAll (printf "%s\\b([^.]|$)" (regexQuoteMeta $threshold.text)) $one.expr (printf "%s %s${1}" $sign ($wanted | toJson))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $change.for -}}
{{- $_ := set $one "for" . -}}
{{- end -}}
{{- $_ := set $one "labels" (merge (dict) ($change.severity | empty | ternary dict (dict "severity" $change.severity)) ($rule.alertLabels | default dict) $one.labels) -}}
{{- if $base -}}
{{- $_ := set $one.annotations "runbook_url" (printf "%s/%s" $base $one.annotations.runbook_url) -}}
{{- end -}}
{{- $rules = append $rules $one -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (set $group "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}
