{{- /* Refuses values that would not fence or not run, with all reasons at once. The schema has
checked the shape already: this is about what the values mean together. */ -}}

{{- define "fencepost.refusals" -}}
{{- $why := list -}}
{{- $v := .Values -}}
{{- $config := $v.config -}}
{{- $sqlite := eq $v.store.type "sqlite" -}}
{{- $gateway := eq $v.kind "gateway" -}}
{{- $workload := and (not $gateway) (ne $v.workload.name "") -}}
{{- $policy := eq (include "fencepost.hasPolicy" .) "true" -}}
{{- $controller := include "fencepost.controller" . -}}

{{- /* Nobody publishes an image under the bare name. */ -}}
{{- $registry := dig "imageRegistry" "" ($v.global | default dict) | default $v.image.registry -}}
{{- $parts := splitList "/" $v.image.repository -}}
{{- if and (not $registry) (or (lt (len $parts) 2) (not (regexMatch "[.:]|^localhost$" (first $parts)))) -}}
{{- $why = append $why (printf "image.registry is missing: %s would be looked for on a public hub, where nobody of ours publishes it. Build the image, push it to your registry, and name that" (include "fencepost.image" .)) -}}
{{- end -}}

{{- /* The marks. */ -}}
{{- if not $v.store.namespace -}}
{{- $why = append $why "store.namespace is missing: choose a name for the marks of one upstream (for example orders), the same for all of its proxies. It is not the name of a release or of a Kubernetes namespace: with a new one, every mark is forgotten" -}}
{{- end -}}
{{- if $sqlite -}}
{{- if gt (int (include "fencepost.replicas" .)) 1 -}}
{{- $why = append $why (printf "store.type sqlite with %s replicas: each would have marks of its own, and a zombie that one refuses would pass at the next. Use Postgres, or one replica" (include "fencepost.replicas" .)) -}}
{{- end -}}
{{- if and (not $gateway) (not $workload) (kindIs "invalid" $v.replicaCount) -}}
{{- $why = append $why "store.type sqlite in the pods of another chart, whose number is unknown here: two of them would each have marks of their own. There must be one pod; if so, say so: replicaCount: 1" -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- $why = append $why "store.type sqlite with autoscaling: a second replica would have marks of its own. Use Postgres" -}}
{{- end -}}
{{- if not $v.persistence.enabled -}}
{{- $why = append $why "store.type sqlite without a persistent volume (persistence.enabled: false): the marks would be lost with the pod, and a lost mark fences nobody" -}}
{{- end -}}
{{- if eq $v.persistence.accessMode "ReadWriteMany" -}}
{{- $why = append $why "store.type sqlite on a ReadWriteMany volume: such volumes are network file systems, on which SQLite's locks and log are not safe. Use ReadWriteOnce or ReadWriteOncePod" -}}
{{- end -}}
{{- $strategy := ternary (dig "strategy" dict $v.workload.spec) $v.strategy $workload -}}
{{- if and (eq $controller "Deployment") $strategy (ne (dig "type" "RollingUpdate" $strategy) "Recreate") -}}
{{- $why = append $why "store.type sqlite in a Deployment with a rolling update: it runs two pods at once, and the second one cannot open the file. Use strategy.type Recreate, or a StatefulSet" -}}
{{- end -}}
{{- if eq $v.migrations.mode "job" -}}
{{- $why = append $why "migrations.mode job with store.type sqlite: the file belongs to the one proxy that has it open. Use mode proxy" -}}
{{- end -}}
{{- else if not $v.store.existingSecret -}}
{{- $why = append $why "store.existingSecret is missing: name the Secret whose key store.existingSecretKey holds the URL of Postgres" -}}
{{- end -}}
{{- if and (eq $v.migrations.mode "job") (not $sqlite) (not $v.migrations.existingSecret) -}}
{{- $why = append $why "migrations.existingSecret is missing: migrations.mode job needs a URL of its own, with a role that may change the schema" -}}
{{- end -}}
{{- if and $v.migrations.acceptNewKeys (ne $v.migrations.mode "job") -}}
{{- $why = append $why "migrations.acceptNewKeys does something only with migrations.mode job. With other modes, run `fencepost migrate --accept-new-keys`" -}}
{{- end -}}

{{- /* The alerts. With --reuse-values, the values of an older release lack it. */ -}}
{{- $known := dict -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- range .rules -}}{{- with .alert -}}{{- $_ := set $known . list -}}{{- end -}}{{- end -}}
{{- end -}}
{{- range include "fencepost.thresholds" . | fromYamlArray -}}
{{- $_ := set $known .alert (append (get $known .alert) .name) -}}
{{- end -}}
{{- range $name, $change := dig "prometheusRule" "alerts" dict $v.metrics -}}
{{- if not (hasKey $known $name) -}}
{{- $why = append $why (printf "metrics.prometheusRule.alerts.%s: there is no such alert. There are %s" $name (keys $known | sortAlpha | join ", ")) -}}
{{- else -}}
{{- range $threshold, $_ := $change.thresholds | default dict -}}
{{- if not (has $threshold (get $known $name)) -}}
{{- $why = append $why (printf "metrics.prometheusRule.alerts.%s.thresholds.%s: it has no such threshold. It has %s" $name $threshold (get $known $name | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The fence drill. With --reuse-values, the values of an older release lack it. */ -}}
{{- with $v.drill -}}
{{- if and .enabled (not .path) -}}
{{- $why = append $why "drill.path is missing: name a path whose key only the drill uses, /orders/__canary__ for example" -}}
{{- end -}}
{{- if and .enabled (not .url) (not (include "fencepost.clientUrl" $)) -}}
{{- $why = append $why "drill.url is missing: no Service is rendered here, so name the URL that clients use" -}}
{{- end -}}
{{- end -}}

{{- if and $v.store.caSecret (dig "store" "tls" "ca_file" "" $config) -}}
{{- $why = append $why "config.store.tls.ca_file is the chart's to set: use store.caSecret" -}}
{{- end -}}

{{- /* What the chart sets itself. */ -}}
{{- range $path, $instead := dict "listen" "bindAddress and ports.data" "admin.listen" "bindAddress and ports.admin" "admin.token_file" "admin.existingSecret" "admin.read_token_file" "admin.existingSecretReadKey" "admin.tls" "networkPolicy.admin, because probes and monitors use plain HTTP" "store.url" "store.type and store.existingSecret (a password does not belong in a ConfigMap)" "store.url_file" "store.existingSecret" "store.namespace" "store.namespace, beside config" "store.migrate" "migrations.mode" -}}
{{- $parts := splitList "." $path -}}
{{- $at := $config -}}
{{- range initial $parts -}}{{- $at = get $at . | default dict -}}{{- end -}}
{{- if hasKey $at (last $parts) -}}
{{- $why = append $why (printf "config.%s is the chart's to set: use %s" $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if and $v.admin.existingSecretReadKey (not $v.admin.existingSecret) -}}
{{- $why = append $why "admin.existingSecretReadKey is a key of admin.existingSecret, which is empty" -}}
{{- end -}}
{{- $fixed := list "config" "upstream" "listen" "store" "namespace" "settle" "admin-listen" "admin-token-file" -}}
{{- $mode := "" -}}
{{- range $v.extraEnv -}}
{{- $flag := trimPrefix "FENCEPOST_" .name | lower | replace "_" "-" -}}
{{- if and (hasPrefix "FENCEPOST_" .name) (has $flag $fixed) -}}
{{- $why = append $why (printf "extraEnv sets %s, which overrides the configuration that this chart checks: use the values instead" .name) -}}
{{- else if eq .name "FENCEPOST_MODE" -}}
{{- $mode = get . "value" | default "unknown" -}}
{{- end -}}
{{- end -}}
{{- $before := "" -}}
{{- range $v.extraArgs -}}
{{- $flag := regexFind "^--[a-z-]+" (toString .) | trimPrefix "--" -}}
{{- if has $flag $fixed -}}
{{- $why = append $why (printf "extraArgs has --%s, which overrides the configuration that this chart checks: use the values instead" $flag) -}}
{{- else if eq $flag "mode" -}}
{{- $mode = trimPrefix "--mode" . | trimPrefix "=" | default "unknown" -}}
{{- else if eq $before "--mode" -}}
{{- $mode = toString . -}}
{{- end -}}
{{- $before = toString . -}}
{{- end -}}

{{- /* Modes that refuse nothing. With routes, a mode from outside has no effect; observe must be
acknowledged anyway. */ -}}
{{- $observing := list -}}
{{- $fencing := false -}}
{{- range $config.routes -}}
{{- if eq (.mode | default "enforce") "observe" -}}{{- $observing = append $observing .path -}}{{- end -}}
{{- if ne (.mode | default "enforce") "bypass" -}}{{- $fencing = true -}}{{- end -}}
{{- end -}}
{{- if not $config.routes -}}
{{- $fencing = ne $mode "bypass" -}}
{{- end -}}
{{- if and $mode (not (has $mode (list "enforce" "bypass"))) -}}
{{- $observing = append $observing (printf "--mode or FENCEPOST_MODE: %s" $mode) -}}
{{- end -}}
{{- if and $observing (not $v.acknowledge.observe) -}}
{{- $why = append $why (printf "observe refuses nothing, stale writes pass (%s): set acknowledge.observe: true if that is intended, and remove it again with the mode" (join ", " $observing)) -}}
{{- end -}}
{{- if and (not $fencing) (not $v.acknowledge.bypass) -}}
{{- $why = append $why "every route is in mode bypass, nothing is fenced: set acknowledge.bypass: true if that is intended" -}}
{{- end -}}

{{- /* The upstream, and the ways to it. */ -}}
{{- $url := dig "upstream" "url" "" $config -}}
{{- $port := "" -}}
{{- if not $url -}}
{{- $why = append $why "config.upstream.url is missing: give the URL of the fenced upstream, such as http://orders.shop.svc:3000, or http://127.0.0.1:3000 for a sidecar" -}}
{{- else if not (regexMatch "^((https?|h2c)://[^/]|unix:/)" $url) -}}
{{- $why = append $why (printf "config.upstream.url is %s: write http://host:port, https://host, h2c://host:port or unix:/path" $url) -}}
{{- else -}}
{{- $port = include "fencepost.upstreamPort" . -}}
{{- $host := regexReplaceAll ":[0-9]+$" (urlParse (replace "h2c://" "http://" $url)).host "" | lower | trimSuffix "." -}}
{{- /* A connection to the wildcard address goes to this pod as well. */ -}}
{{- $loopback := or (hasPrefix "127." $host) (hasSuffix ".localhost" $host) (has $host (list "localhost" "[::1]" "0.0.0.0" "[::]")) -}}
{{- if and $gateway (or $loopback (hasPrefix "unix:" $url)) -}}
{{- $why = append $why (printf "config.upstream.url is %s, but a gateway's pod holds nothing but fencepost: name the Service, or use kind sidecar" $url) -}}
{{- end -}}
{{- if and $loopback (has $port (list (toString $v.ports.data) (toString $v.ports.admin))) -}}
{{- $why = append $why (printf "config.upstream.url is %s, fencepost's own port: change ports.data and ports.admin, or the upstream's port" $url) -}}
{{- end -}}
{{- $service := $v.service.name | default (include "fencepost.fullname" .) -}}
{{- if and (eq (include "fencepost.hasService" .) "true") (or (eq $host $service) (hasPrefix (printf "%s.%s." $service .Release.Namespace) (printf "%s." $host))) -}}
{{- $why = append $why (printf "config.upstream.url is %s, fencepost's own Service: give one of the two another name" $url) -}}
{{- end -}}
{{- end -}}
{{- if eq (toString $v.ports.data) (toString $v.ports.admin) -}}
{{- $why = append $why "ports.data and ports.admin are one port: give them different numbers" -}}
{{- end -}}
{{- if eq (include "fencepost.hasService" .) "true" -}}
{{- $target := toString ($v.service.targetPort | default $v.ports.data) -}}
{{- if eq $target "fencepost" -}}
{{- $why = append $why "service.targetPort fencepost is a name, and Kubernetes before 1.33 may not find a native sidecar's port by it: omit it, and it is ports.data" -}}
{{- else if ne $target (toString $v.ports.data) -}}
{{- if and $port (eq $target $port) -}}
{{- $why = append $why (printf "service.targetPort %s is the upstream's own port, which bypasses fencepost. Omit it, and it is ports.data" $target) -}}
{{- else -}}
{{- $why = append $why (printf "service.targetPort %s is not fencepost's data port: requests to it are not fenced. Omit it, and it is ports.data" $target) -}}
{{- end -}}
{{- end -}}
{{- $addresses := append ($v.service.extraSpec.clusterIPs | default list) ($v.service.extraSpec.clusterIP | default "") -}}
{{- if and (has "None" $addresses) (ne (int $v.service.port) (int $v.ports.data)) -}}
{{- $why = append $why (printf "service.port %d: a headless Service has no targetPort: clients connect to this port of the pod itself, without fencepost. Give service.port and ports.data the same number, or give the Service an address" (int $v.service.port)) -}}
{{- end -}}
{{- range list "ports" "selector" "type" "externalName" -}}
{{- if hasKey $v.service.extraSpec . -}}
{{- $why = append $why (printf "service.extraSpec.%s would bypass the fenced port: use service.port and service.type" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The sidecar. */ -}}
{{- if not $gateway -}}
{{- if and (eq $v.sidecar.form "native") (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $why = append $why (printf "sidecar.form native needs Kubernetes 1.29, this is %s: use sidecar.form classic" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if $workload -}}
{{- $pod := ($v.workload.spec.template | default dict).spec | default dict -}}
{{- $app := $v.workload.upstreamContainer | default (first ($pod.containers | default (list dict))).name | default "" -}}
{{- $found := false -}}
{{- range $pod.containers -}}
{{- if eq .name $app -}}
{{- $found = true -}}
{{- if and (dig "lifecycle" "preStop" "" .) (not $v.workload.replacePreStop) -}}
{{- $why = append $why (printf "container %s has a preStop of its own. A container can have only one, and needs it to wait for fencepost. If the present one only sleeps until the endpoints are updated, fencepost's shutdown.delay replaces it: set workload.replacePreStop: true" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $one := concat ($pod.containers | default list) ($pod.initContainers | default list) -}}
{{- $stays := or (has $one ($pod.containers | default list)) (eq (dig "restartPolicy" "" $one) "Always") -}}
{{- range $one.ports -}}
{{- if and $stays (has (toString .containerPort) (list (toString $v.ports.data) (toString $v.ports.admin))) -}}
{{- $why = append $why (printf "port %v is taken by a container of the workload: change ports.data or ports.admin" .containerPort) -}}
{{- end -}}
{{- if has .name (list "fencepost" "fencepost-admin") -}}
{{- $why = append $why (printf "port name %s is taken by container %s of the workload: a lookup of fencepost's port would find that one, which is not fenced. Give it another name" .name $one.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- $why = append $why (printf "workload.spec has no container %q: give the spec of the Deployment or StatefulSet as it is, with template.spec.containers" $app) -}}
{{- end -}}
{{- if and $pod.shareProcessNamespace (eq $v.sidecar.form "native") -}}
{{- $why = append $why "workload.spec has shareProcessNamespace: `fencepost drain`, which ends a native sidecar, must find fencepost as process 1. Use sidecar.form classic" -}}
{{- end -}}
{{- if and $pod.hostPID (eq $v.sidecar.form "native") -}}
{{- $why = append $why "workload.spec has hostPID: `fencepost drain`, which ends a native sidecar, would find the node's process 1 instead of fencepost. Use sidecar.form classic" -}}
{{- end -}}
{{- if and $pod.hostNetwork $policy -}}
{{- $why = append $why "workload.spec has hostNetwork with networkPolicy.enabled: policies do not apply to pods on the node's network, and the upstream's port would stay open. Remove hostNetwork, or let the upstream listen on 127.0.0.1 and set networkPolicy.enabled: false" -}}
{{- end -}}
{{- if not ($v.workload.spec.selector | default dict).matchLabels -}}
{{- $why = append $why "workload.spec.selector needs matchLabels, by which Service, policies and monitors find the pods" -}}
{{- end -}}
{{- else if and (not $v.sidecar.selector) (or (eq (include "fencepost.hasService" .) "true") $policy $v.metrics.podMonitor.enabled $v.metrics.serviceMonitor.enabled) -}}
{{- $why = append $why "sidecar.selector is missing: Service, NetworkPolicy and monitors find the pods of the other chart by these labels" -}}
{{- end -}}
{{- end -}}
{{- if not $gateway -}}
{{- range $v.networkPolicy.extraIngress -}}
{{- if not .ports -}}
{{- $why = append $why "networkPolicy.extraIngress: a rule without ports opens them all, the upstream's too: name ports over which no client can write" -}}
{{- end -}}
{{- range .ports -}}
{{- if or (kindIs "invalid" .port) (kindIs "string" .port) -}}
{{- $why = append $why "networkPolicy.extraIngress has a port without a number: without a number it means every port, and the chart cannot see which port a name stands for" -}}
{{- else if and $port (le (int .port) (int $port)) (ge (int (.endPort | default .port)) (int $port)) -}}
{{- $why = append $why (printf "networkPolicy.extraIngress opens the upstream's own port %s, which bypasses fencepost" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $gateway $policy (not $v.networkPolicy.upstream.podSelector) -}}
{{- $why = append $why "networkPolicy.upstream.podSelector is missing: name the labels of the upstream's pods (matchLabels: { app: orders }), so that they can be reached only through fencepost. If the upstream is outside of the cluster, or the network plugin does not enforce policies, set networkPolicy.enabled: false" -}}
{{- end -}}
{{- if and $gateway $policy $url (not (include "fencepost.upstreamNamespace" .)) -}}
{{- $why = append $why (printf "networkPolicy.upstream.namespace is missing: config.upstream.url is %s, which does not tell the namespace of the upstream's pods (http://SERVICE.NAMESPACE.svc does). Name their namespace, or set networkPolicy.enabled: false if the upstream is outside of the cluster" $url) -}}
{{- end -}}
{{- if and (not $gateway) (or $v.networkPolicy.extraEgress (dig "postgres" "to" list $v.networkPolicy)) -}}
{{- $why = append $why "networkPolicy.extraEgress and networkPolicy.postgres apply to a gateway only: a sidecar's policy is about ingress only, because the upstream in the same pod needs connections of its own" -}}
{{- end -}}

{{- /* Labels that hide the pods, autoscaling without effect, budgets that prevent a node's
drain. */ -}}
{{- range $name, $labels := dict "commonLabels" $v.commonLabels "podLabels" ($gateway | ternary $v.podLabels dict) -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey ($labels | default dict) . -}}
{{- $why = append $why (printf "%s has %s, by which the chart finds its own pods: the chart makes it from its own name (nameOverride) and the release's" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- if not $gateway -}}
{{- $why = append $why "autoscaling is of a gateway only: the pods of kind sidecar need an autoscaler of their own" -}}
{{- else if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) -}}
{{- $why = append $why (printf "autoscaling.minReplicas %d is above maxReplicas %d" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $gateway $v.podDisruptionBudget.enabled (has (toString $v.podDisruptionBudget.maxUnavailable) (list "0" "0%")) -}}
{{- $why = append $why (printf "podDisruptionBudget.maxUnavailable %v: no pod may ever be evicted, so no node can be drained. Use 1" $v.podDisruptionBudget.maxUnavailable) -}}
{{- end -}}

{{- /* The end. */ -}}
{{- $least := int (include "fencepost.leastGrace" .) -}}
{{- if not (kindIs "invalid" $v.terminationGracePeriodSeconds) -}}
{{- if lt (int $v.terminationGracePeriodSeconds) $least -}}
{{- $why = append $why (printf "terminationGracePeriodSeconds %d is below %d, the time that shutdown.delay, shutdown.deadline and the upstream may take: the kubelet would kill running requests, with unknown outcomes" (int $v.terminationGracePeriodSeconds) $least) -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled $v.metrics.serviceMonitor.enabled -}}
{{- $why = append $why "metrics.podMonitor and metrics.serviceMonitor together: every series would be there twice, and every alert would count double" -}}
{{- end -}}

{{- if $why -}}
{{- fail (printf "\n\nfencepost:\n  - %s\n" (join "\n  - " $why)) -}}
{{- end -}}
{{- end -}}
