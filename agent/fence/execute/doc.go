// Package execute runs one action of one fence agent in the pod of a Kubernetes Job, and has what evictd-controller and
// this pod write to each other: a request, which is a file of a Secret, and a report, which is the termination message
// of the container.
//
// A Job is not at most once: Kubernetes may start its pod late, or twice. So the actions are status, off and on only,
// and nothing runs
//
//   - after the time NotAfter of the request: the node may be healthy by then;
//   - for longer than its Timeout, if the clock of the executor's node is late;
//   - on the node that is fenced: an agent there would prove nothing, and could end with its machine.
//
// The report has no output of the agent but the last lines of its stderr, without the values of secrets.
package execute
