{{- /* Names, labels, the image. */ -}}

{{- define "fencepost.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fencepost.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fencepost.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fencepost.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The labels of the pods that contain fencepost, as a YAML map. */ -}}
{{- define "fencepost.podSelector" -}}
{{- if eq .Values.kind "gateway" -}}
{{ include "fencepost.selectorLabels" . }}
{{- else if .Values.workload.name -}}
{{ (.Values.workload.spec.selector | default dict).matchLabels | toYaml }}
{{- else -}}
{{ toYaml .Values.sidecar.selector }}
{{- end -}}
{{- end -}}

{{- define "fencepost.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "fencepost.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "fencepost.image" -}}
{{- $registry := dig "imageRegistry" "" (.Values.global | default dict) | default .Values.image.registry -}}
{{- $image := .Values.image.repository -}}
{{- if $registry -}}
{{- $image = printf "%s/%s" (trimSuffix "/" $registry) $image -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $image .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "fencepost.controller" -}}
{{- if .Values.workloadKind -}}
{{- .Values.workloadKind -}}
{{- else if and (eq .Values.kind "gateway") (eq .Values.store.type "sqlite") -}}
StatefulSet
{{- else -}}
Deployment
{{- end -}}
{{- end -}}

{{- define "fencepost.replicas" -}}
{{- if and (eq .Values.kind "sidecar") .Values.workload.name -}}
{{- hasKey .Values.workload.spec "replicas" | ternary .Values.workload.spec.replicas 1 | int -}}
{{- else if not (kindIs "invalid" .Values.replicaCount) -}}
{{- int .Values.replicaCount -}}
{{- else if eq .Values.store.type "sqlite" -}}
1
{{- else -}}
2
{{- end -}}
{{- end -}}

{{- /* "true" if a Service is rendered. */ -}}
{{- define "fencepost.hasService" -}}
{{- if kindIs "bool" .Values.service.enabled -}}
{{- .Values.service.enabled -}}
{{- else -}}
{{- or (eq .Values.kind "gateway") (ne .Values.workload.name "") -}}
{{- end -}}
{{- end -}}

{{- /* The labels of the fence drill's pods. */ -}}
{{- define "fencepost.drillLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}-drill
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Where clients find the proxy; empty without a Service. */ -}}
{{- define "fencepost.clientUrl" -}}
{{- if eq (include "fencepost.hasService" .) "true" -}}
{{- $scheme := ternary "https" "http" (not (empty (dig "tls" "cert_file" "" .Values.config))) -}}
{{- $service := .Values.service.name | default (include "fencepost.fullname" .) -}}
{{- printf "%s://%s.%s.svc:%v" $scheme $service .Release.Namespace .Values.service.port -}}
{{- end -}}
{{- end -}}

{{- /* The port in config.upstream.url; empty: it has none. */ -}}
{{- define "fencepost.upstreamPort" -}}
{{- $url := dig "upstream" "url" "" .Values.config -}}
{{- if regexMatch "^[a-z0-9]+://[^/]*:[0-9]+/?$" $url -}}
{{- regexReplaceAll "^.*:([0-9]+)/?$" $url "${1}" -}}
{{- end -}}
{{- end -}}

{{- /* "true" if NetworkPolicies are rendered. A sidecar's closes the upstream's own ports, and must
be requested. */ -}}
{{- define "fencepost.hasPolicy" -}}
{{- if kindIs "bool" .Values.networkPolicy.enabled -}}
{{- .Values.networkPolicy.enabled -}}
{{- else -}}
{{- eq .Values.kind "gateway" -}}
{{- end -}}
{{- end -}}

{{- /* The namespace of the upstream's pods, which is that of its Service. Empty: the URL does not
name it. */ -}}
{{- define "fencepost.upstreamNamespace" -}}
{{- $host := regexReplaceAll "^[a-z0-9]+://([^/:]*).*$" (dig "upstream" "url" "" .Values.config | lower) "${1}" -}}
{{- $service := "^.+[.]([a-z0-9-]+)[.]svc([.].*)?$" -}}
{{- if .Values.networkPolicy.upstream.namespace -}}
{{- .Values.networkPolicy.upstream.namespace -}}
{{- else if regexMatch $service $host -}}
{{- regexReplaceAll $service $host "${1}" -}}
{{- else if not (or (contains "." $host) (hasPrefix "[" $host)) -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- define "fencepost.claimName" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-data" (include "fencepost.fullname" .)) -}}
{{- end -}}

{{- /* "true" if each pod of a StatefulSet has its volume from a claim template. */ -}}
{{- define "fencepost.claimPerPod" -}}
{{- and (eq .Values.store.type "sqlite") (not .Values.persistence.existingClaim) (eq (include "fencepost.controller" .) "StatefulSet") -}}
{{- end -}}
