// Package webhook is the scheduling half of agent/affinity by admission: it answers the AdmissionReviews of the API
// server about pods that are created. The annotation of a pod is added to its
// requiredDuringSchedulingIgnoredDuringExecution, so that the scheduler, the kubelet and autoscalers follow it.
//
// A [Handler] reads nothing but the request and has no side effects. It changes that selector only, and nothing of a
// pod whose selector has the requirement already: called again for its own result, it changes nothing.
//
// It refuses a pod only if the selector would become too large. Whatever it can't read stays as it is: pods without the
// annotation, pods whose annotation does not parse, and other requests than the creation of a pod.
package webhook
