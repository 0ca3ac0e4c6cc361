{{- /*
The sidecar for other charts. Each template takes their root context (`.Subcharts.ALIAS` for an
alias), finds its values under the name of the dependency (`fencepost:`), and renders:

  fencepost.sidecar                        a list of one container: for initContainers (native) or containers (classic)
  fencepost.volumes                        a list of its volumes
  fencepost.volumeClaimTemplates           a list, for a StatefulSet on SQLite; otherwise nothing
  fencepost.upstream.lifecycle             the `lifecycle` of the fenced container
  fencepost.terminationGracePeriodSeconds  a number, for the pod
  fencepost.podAnnotations                 a map: the pods roll when it changes
*/ -}}

{{- define "fencepost.sidecar" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
{{- if ne (toString $scope.Values.kind) "sidecar" -}}
{{- fail "fencepost.sidecar needs fencepost's values with `kind: sidecar`: make fencepost a dependency of this chart, and put them under `fencepost:`. For an alias of it, include the template with .Subcharts.ALIAS" -}}
{{- end -}}
- {{ include "fencepost.container" $scope | nindent 2 | trim }}
{{- end -}}

{{- define "fencepost.volumes" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
{{- include "fencepost.podVolumes" $scope -}}
{{- end -}}

{{- define "fencepost.volumeClaimTemplates" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
{{- if eq (include "fencepost.claimPerPod" $scope) "true" -}}
- metadata:
    name: fencepost-data
    {{- with $scope.Values.persistence.annotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "fencepost.claimSpec" $scope | nindent 4 }}
{{- end -}}
{{- end -}}

{{- define "fencepost.upstream.lifecycle" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
preStop:
  httpGet:
    path: /drained
    port: {{ $scope.Values.ports.admin }}
{{- end -}}

{{- define "fencepost.terminationGracePeriodSeconds" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
{{- $scope.Values.terminationGracePeriodSeconds | default (include "fencepost.leastGrace" $scope) | int -}}
{{- end -}}

{{- define "fencepost.podAnnotations" -}}
{{- $scope := get (.Subcharts | default dict) "fencepost" | default . -}}
checksum/fencepost: {{ include "fencepost.restartChecksum" $scope }}
{{- with $scope.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
