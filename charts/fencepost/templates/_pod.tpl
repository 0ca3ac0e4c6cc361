{{- /* The container and its volumes, which are the same in a gateway's pod and in a
sidecar's. */ -}}

{{- define "fencepost.container" -}}
name: fencepost
image: {{ include "fencepost.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if and (eq .Values.kind "sidecar") (eq .Values.sidecar.form "native") }}
restartPolicy: Always
{{- end }}
env:
  {{- include "fencepost.env" . | nindent 2 }}
ports:
  - name: fencepost
    containerPort: {{ .Values.ports.data }}
    protocol: TCP
  - name: fencepost-admin
    containerPort: {{ .Values.ports.admin }}
    protocol: TCP
startupProbe:
  httpGet:
    path: /livez
    port: fencepost-admin
  {{- toYaml .Values.startupProbe | nindent 2 }}
livenessProbe:
  httpGet:
    path: /livez
    port: fencepost-admin
  {{- toYaml .Values.livenessProbe | nindent 2 }}
readinessProbe:
  httpGet:
    path: /readyz
    port: fencepost-admin
  {{- toYaml .Values.readinessProbe | nindent 2 }}
{{- if and (eq .Values.kind "sidecar") (eq .Values.sidecar.form "native") }}
# The kubelet sends SIGTERM to a native sidecar only after the upstream has ended, so the drain
# begins here.
lifecycle:
  preStop:
    exec:
      command: [/fencepost, drain]
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "fencepost.mounts" . | nindent 2 }}
  {{- if eq .Values.store.type "sqlite" }}
  - name: fencepost-data
    mountPath: /var/lib/fencepost
  {{- end }}
  {{- if .Values.admin.existingSecret }}
  - name: fencepost-admin
    mountPath: /run/secrets/fencepost/admin
    readOnly: true
  {{- end }}
  {{- if eq .Values.kind "sidecar" }}
  # The pod's token is the upstream's. The API server mounts none where a volume is mounted already.
  - name: fencepost-no-token
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "fencepost.env" -}}
- name: FENCEPOST_CONFIG
  value: /etc/fencepost/fencepost.yaml
- name: FENCEPOST_LISTEN
  value: {{ printf "%s:%d" .Values.bindAddress (int .Values.ports.data) | quote }}
- name: FENCEPOST_ADMIN_LISTEN
  value: {{ printf "%s:%d" .Values.bindAddress (int .Values.ports.admin) | quote }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Directories, never subPath: a file mounted by subPath does not change with its source. */ -}}
{{- define "fencepost.mounts" -}}
- name: fencepost-config
  mountPath: /etc/fencepost
  readOnly: true
{{- if eq .Values.store.type "postgres" }}
- name: fencepost-store
  mountPath: /run/secrets/fencepost/store
  readOnly: true
{{- if .Values.store.caSecret }}
- name: fencepost-store-ca
  mountPath: /run/secrets/fencepost/store-ca
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- /* The CA of Postgres, for the pods and for the Job. */ -}}
{{- define "fencepost.caVolume" -}}
{{- if and (eq .Values.store.type "postgres") .Values.store.caSecret -}}
- name: fencepost-store-ca
  secret:
    secretName: {{ .Values.store.caSecret }}
    items:
      - key: {{ .Values.store.caSecretKey }}
        path: ca.crt
{{- end -}}
{{- end -}}

{{- define "fencepost.podVolumes" -}}
- name: fencepost-config
  configMap:
    name: {{ include "fencepost.fullname" . }}
{{- if eq .Values.store.type "postgres" }}
- name: fencepost-store
  secret:
    secretName: {{ .Values.store.existingSecret }}
    items:
      - key: {{ .Values.store.existingSecretKey }}
        path: url
{{- with include "fencepost.caVolume" . }}
{{ . }}
{{- end }}
{{- else if ne (include "fencepost.claimPerPod" .) "true" }}
- name: fencepost-data
  persistentVolumeClaim:
    claimName: {{ include "fencepost.claimName" . }}
{{- end }}
{{- if .Values.admin.existingSecret }}
- name: fencepost-admin
  secret:
    secretName: {{ .Values.admin.existingSecret }}
    items:
      - key: {{ .Values.admin.existingSecretKey }}
        path: token
      {{- with .Values.admin.existingSecretReadKey }}
      - key: {{ . }}
        path: read-token
      {{- end }}
{{- end }}
{{- if eq .Values.kind "sidecar" }}
- name: fencepost-no-token
  emptyDir:
    sizeLimit: 1Mi
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fencepost.claimSpec" -}}
accessModes: [{{ .Values.persistence.accessMode }}]
{{- with .Values.persistence.storageClass }}
storageClassName: {{ ternary "" . (eq . "-") | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.persistence.size }}
{{- end -}}
