{{- /* fencepost.yaml: the values' `config`, and the fields that the chart sets. */ -}}

{{- define "fencepost.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $store := get $config "store" | default dict -}}
{{- $_ := set $store "namespace" .Values.store.namespace -}}
{{- if eq .Values.store.type "sqlite" -}}
{{- $_ := set $store "url" "sqlite:/var/lib/fencepost/marks.db" -}}
{{- else -}}
{{- $_ := set $store "url_file" "/run/secrets/fencepost/store/url" -}}
{{- if .Values.store.caSecret -}}
{{- $tls := get $store "tls" | default dict -}}
{{- $_ := set $tls "ca_file" "/run/secrets/fencepost/store-ca/ca.crt" -}}
{{- $_ := set $store "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- $_ := set $store "migrate" (eq .Values.migrations.mode "proxy") -}}
{{- $_ := set $config "store" $store -}}
{{- if .Values.admin.existingSecret -}}
{{- $admin := get $config "admin" | default dict -}}
{{- $_ := set $admin "token_file" "/run/secrets/fencepost/admin/token" -}}
{{- if .Values.admin.existingSecretReadKey -}}
{{- $_ := set $admin "read_token_file" "/run/secrets/fencepost/admin/read-token" -}}
{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* A digest of the settings that a reload cannot change: the pods roll when it changes.
Everything else is reloaded from the mounted ConfigMap, without a restart. */ -}}
{{- define "fencepost.restartChecksum" -}}
{{- $config := include "fencepost.config" . | fromYaml -}}
{{- $keys := dict -}}
{{- range get $config "routes" | default list -}}
{{- $_ := set $keys .path (.resource | default "") -}}
{{- end -}}
{{- $fixed := dict "limits" (get $config "limits") "queue" (dig "barrier" "queue" "" $config) "store" (omit $config.store "create") "settle" (dig "barrier" "settle" "" $config) "undelivered" (dig "upstream" "undelivered" "" $config) "tls" (hasKey $config "tls") "keys" $keys -}}
{{- $fixed | toJson | sha256sum -}}
{{- end -}}

{{- /* A duration (`1m 30s`, `250ms`) in milliseconds. */ -}}
{{- define "fencepost.milliseconds" -}}
{{- $units := dict "ms" 1 "msec" 1 "s" 1000 "sec" 1000 "second" 1000 "seconds" 1000 "m" 60000 "min" 60000 "minute" 60000 "minutes" 60000 "h" 3600000 "hr" 3600000 "hour" 3600000 "hours" 3600000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+\\s*[a-zA-Z]+" (toString .) -1 -}}
{{- $unit := regexFind "[a-zA-Z]+$" . -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "%q is a duration this chart cannot read: write it in ms, s, m or h" .) -}}
{{- end -}}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "fencepost.seconds" -}}
{{- div (add (include "fencepost.milliseconds" . | int64) 999) 1000 -}}
{{- end -}}

{{- /* The shortest grace period that cuts off nothing: delay, deadline, the upstream's own time,
and a margin. */ -}}
{{- define "fencepost.leastGrace" -}}
{{- $shutdown := .Values.config.shutdown | default dict -}}
{{- $own := add (include "fencepost.seconds" ($shutdown.delay | default "0s")) (include "fencepost.seconds" ($shutdown.deadline | default "25s")) -}}
{{- $app := 0 -}}
{{- if eq .Values.kind "sidecar" -}}
{{- $app = .Values.sidecar.upstreamGracePeriodSeconds -}}
{{- if .Values.workload.name -}}
{{- $pod := (.Values.workload.spec.template | default dict).spec | default dict -}}
{{- $app = hasKey $pod "terminationGracePeriodSeconds" | ternary $pod.terminationGracePeriodSeconds 30 -}}
{{- end -}}
{{- end -}}
{{- add $own (int $app) 5 -}}
{{- end -}}

{{- /* The port of the upstream's URL. */ -}}
{{- define "fencepost.upstreamPort" -}}
{{- $url := dig "upstream" "url" "" .Values.config -}}
{{- if not (hasPrefix "unix:" $url) -}}
{{- $host := (urlParse (replace "h2c://" "http://" $url)).host -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $host) | default (ternary "443" "80" (hasPrefix "https:" $url)) -}}
{{- end -}}
{{- end -}}
