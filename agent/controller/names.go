package controller

import corev1 "k8s.io/api/core/v1"

// The names that the controller uses in Node objects.
const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelMaster       = "node-role.kubernetes.io/master"
	// labelExclude marks nodes in repair. Other remediators use it, too.
	labelExclude = "remediation.medik8s.io/exclude-from-remediation"
	// labelName marks the pods of the controller with programName.
	labelName = "app.kubernetes.io/name"
	// programName is also the holder of the Leases that the controller shares with other remediators.
	programName = "evictd-controller"

	// annotationPaused has the time until which the node is not fenced.
	annotationPaused = "evictd.io/fencing-paused"
	// annotationConfirmOff has the UID of the fence whose machine is off, by a person's word.
	annotationConfirmOff = "evictd.io/confirm-off"
	// annotationDrill has the UID of the Node that a person wants to be drilled. It is one of a NodeFence.
	annotationDrill = "evictd.io/fence-drill"
	// annotationFence says that the quarantine taint is the controller's. Its value is the UID of the fence.
	annotationFence = "evictd.io/fence"
	// annotationOutOfService says so of the out-of-service taint.
	annotationOutOfService = "evictd.io/fence-out-of-service"
	// annotationCordon has the UID of the fence that made the Node unschedulable.
	annotationCordon = "evictd.io/fence-cordon"
)

var (
	// quarantine keeps new pods off a node that is being fenced.
	quarantine = corev1.Taint{Key: "evictd.io/fencing", Effect: corev1.TaintEffectNoSchedule}
	// outOfService releases the pods and volumes of a node that is off.
	outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
)
