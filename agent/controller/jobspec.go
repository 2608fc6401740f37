package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

const (
	// executorName is the label labelName of Jobs, and of their pods and Secrets.
	executorName = "evictd-executor"
	// labelExpires is the time in seconds since 1970 after which the Secret of a Job has no use.
	labelExpires = "evictd.io/fence-job-expires"
	// annotationRequest identifies what a Job executes.
	annotationRequest = "evictd.io/fence-request"

	// executorContainer is the name of the container, executorUser that of evictd-controller's Deployment.
	executorContainer = "agent"
	executorUser      = 61120
	// requestFile is the key of the Secret and the file in requestDirectory.
	requestFile, requestDirectory = "request.json", "/run/evictd/request"
	// jobTTL is how long a Job stays that no controller has deleted.
	jobTTL = 5 * time.Minute
)

// name returns the name of the Job and of its Secret.
func (u *use) name() string { return fence.JobName(u.fence, u.id) }

// hash identifies what a Job executes.
func (u *use) hash() string {
	m := u.method
	sum := sha256.Sum256([]byte(strings.Join([]string{
		u.fence, u.node, u.id, m.Name, m.Agent, string(m.Action), m.Device,
	}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// meta returns the metadata of Job and Secret. Both go with the NodeFence.
func (u *use) meta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: u.name(), Labels: map[string]string{labelName: executorName},
		Annotations: map[string]string{annotationRequest: u.hash()},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: nodefence.GroupVersion.String(), Kind: "NodeFence", Name: nodefence.ObjectName(u.node),
			UID: types.UID(u.fence),
		}},
	}
}

// ours reports whether an object is the one of a use, and not another one with its name.
func (u *use) ours(o metav1.Object) bool {
	for _, owner := range o.GetOwnerReferences() {
		if string(owner.UID) == u.fence {
			return o.GetAnnotations()[annotationRequest] == u.hash()
		}
	}
	return false
}

// secret returns the Secret with the request.
func (u *use) secret(namespace string, request []byte, deadline time.Time) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: u.meta(namespace), Immutable: new(true), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{requestFile: request},
	}
	s.Labels[labelExpires] = strconv.FormatInt(deadline.Add(time.Minute).Unix(), 10)
	return s
}

// job returns the Job of a use. Its pod runs on none of the nodes.
func (u *use) job(namespace, image, agents string, timeout time.Duration, nodes ...string) *batchv1.Job {
	seconds := int64(math.Ceil(timeout.Seconds()))
	return &batchv1.Job{
		ObjectMeta: u.meta(namespace),
		Spec: batchv1.JobSpec{
			Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(0)),
			ActiveDeadlineSeconds:   &seconds,
			PodReplacementPolicy:    new(batchv1.Failed),
			TTLSecondsAfterFinished: new(int32(jobTTL / time.Second)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelName: executorName}},
				Spec:       executorPod(u.name(), image, agents, nodes),
			},
		},
	}
}

// executorPod returns the pod of a Job.
func executorPod(secret, image, agents string, nodes []string) corev1.PodSpec {
	var elsewhere []corev1.NodeSelectorRequirement
	for _, node := range nodes {
		// By its name: a label could be missing, or be that of another node.
		elsewhere = append(elsewhere, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node},
		})
	}
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(int64(2)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		// As of evictd-controller: other pods are preempted and evicted first when nodes are lost.
		PriorityClassName: "system-cluster-critical",
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: elsewhere}},
			},
		}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: new(int64(executorUser)), RunAsGroup: new(int64(executorUser)), RunAsNonRoot: new(true),
			FSGroup:        new(int64(executorUser)), // else the user can't read the Secret
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: executorContainer, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"/usr/bin/evictd-controller", "execute"},
			Args: []string{
				"--request=" + requestDirectory + "/" + requestFile, "--report=" + corev1.TerminationMessagePathDefault,
				"--fence-agents-dir=" + agents,
			},
			Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"},
			}}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "request", MountPath: requestDirectory, ReadOnly: true},
				{Name: "tmp", MountPath: "/tmp"},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Privileged: new(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
			}},
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}},
		Volumes: []corev1.Volume{
			{Name: "request", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: secret, DefaultMode: new(int32(0o400)),
			}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				SizeLimit: new(resource.MustParse("16Mi")),
			}}},
		},
	}
}
