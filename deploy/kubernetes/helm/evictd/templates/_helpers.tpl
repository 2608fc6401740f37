{{/* evictd.labels are the labels of all objects. */}}
{{- define "evictd.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* evictd.file has the objects of a manifest below ../.., with the namespace of the release and the labels. */}}
{{- define "evictd.file" -}}
{{- $root := index . 0 -}}
{{- range splitList "\n---\n" ($root.Files.Get (printf "files/%s" (index . 1))) }}
{{- $object := fromYaml . -}}
{{- if hasKey $object "Error" }}{{ fail $object.Error }}{{ end -}}
{{- if hasKey $object.metadata "namespace" }}{{ $_ := set $object.metadata "namespace" $root.Release.Namespace }}{{ end -}}
{{- $_ := set $object.metadata "labels" (include "evictd.labels" $root | fromYaml) -}}
{{- range $object.subjects }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end -}}
{{- if eq $object.kind "FlowSchema" }}
{{- range $object.spec.rules }}{{ range .subjects }}{{ $_ := set .serviceAccount "namespace" $root.Release.Namespace }}{{ end }}{{ end }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}

{{/* evictd.pools is the list of all DaemonSets. The first has the values outside of pools. */}}
{{- define "evictd.pools" -}}
{{- /* A pool that tolerates evictd's own taints only in part would not get a pod back on a node that evictd has tainted. */ -}}
{{- $own := list -}}
{{- range list "memory-pressure" "disk-pressure" "pid-pressure" "node-shutdown" -}}
{{- $own = append $own (dict "key" (printf "evictd.io/%s" .) "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- $first := dict "name" "evictd" "mode" .Values.mode "config" .Values.config "nodeSelector" .Values.nodeSelector "affinity" .Values.affinity "tolerations" .Values.tolerations -}}
{{- $pools := list $first -}}
{{- $names := list -}}
{{- range .Values.pools -}}
{{- if has .name $names }}{{ fail (printf "pools: the name %s is given twice" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $pool := dict "name" (printf "evictd-%s" .name) "mode" .mode "nodeSelector" (.nodeSelector | default dict) "affinity" (.affinity | default dict) -}}
{{- $_ := set $pool "config" (mustMergeOverwrite (deepCopy $.Values.config) (.config | default dict)) -}}
{{- $_ := set $pool "tolerations" (ternary .tolerations $.Values.tolerations (hasKey . "tolerations")) -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- range $pools -}}
{{- if and (eq .mode "enforce") (semverCompare "<1.33.0-0" $version) }}{{ fail (printf "mode enforce needs Kubernetes 1.33 or newer, and this is %s: set mode=dry-run, also in pools" $version) }}{{ end -}}
{{- $all := false -}}
{{- range .tolerations }}{{ if and (not .key) (has (.effect | default "") (list "" "NoSchedule")) }}{{ $all = true }}{{ end }}{{ end -}}
{{- if not $all }}{{ $_ := set . "tolerations" (concat .tolerations $own) }}{{ end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* evictd.enforces is not empty if a DaemonSet enforces evictions. */}}
{{- define "evictd.enforces" -}}
{{- range include "evictd.pools" . | fromJsonArray }}{{ if eq .mode "enforce" }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* evictd.removeNulls removes the fields that are null from a map, and from those in it: Helm and the merge keep some. */}}
{{- define "evictd.removeNulls" -}}
{{- range $field, $value := . -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $ $field }}
{{- else if kindIs "map" $value }}{{ include "evictd.removeNulls" $value }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* evictd.config is the configuration of a DaemonSet. */}}
{{- define "evictd.config" -}}
{{- $values := (index . 0).Values -}}
{{- $pool := index . 1 -}}
{{- $config := deepCopy $pool.config -}}
{{- include "evictd.removeNulls" $config -}}
{{- range $field, $instead := dict "apiVersion" "remove it" "kind" "remove it" "dryRun" "set mode" -}}
{{- if hasKey $config $field }}{{ fail (printf "config.%s: the chart sets this field: %s" $field $instead) }}{{ end -}}
{{- end -}}
{{- $kube := $config.kube | default dict -}}
{{- if or (hasKey $kube "uid") (hasKey $kube "gid") }}{{ fail "config.kube: the chart sets uid: set evictdKube.userID" }}{{ end -}}
{{- if and (eq $pool.mode "enforce") (not (hasKey $config "kubelet")) }}{{ $_ := set $config "kubelet" "auto" }}{{ end -}}
{{- $host := printf "/host%s" (trimPrefix "unix://" $values.runtime.endpoint) -}}
{{- if not (or (hasKey $config "runtimeEndpoint") (has $host (list "/host/run/containerd/containerd.sock" "/host/run/crio/crio.sock"))) -}}
{{- $_ := set $config "runtimeEndpoint" (printf "unix://%s" $host) -}}
{{- end -}}
{{- if not (or (hasKey $config "nodefsPath") (eq $values.kubelet.root "/var/lib/kubelet")) }}{{ $_ := set $config "nodefsPath" $values.kubelet.root }}{{ end -}}
{{- $_ := set $config "kube" (merge $kube (dict "uid" (int64 $values.evictdKube.userID))) -}}
{{- $_ := set $config "apiVersion" "evictd.io/v1alpha1" -}}
{{- $_ := set $config "kind" "AgentConfiguration" -}}
{{- $_ := set $config "dryRun" (eq $pool.mode "dry-run") -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "evictd.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ required "image: set the tag or the digest of the image" .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* evictd.container has the fields that both containers have. */}}
{{- define "evictd.container" -}}
image: {{ include "evictd.image" . | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}
