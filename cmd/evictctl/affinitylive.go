package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/affinity/settings"
)

// liveFlags are those of evictctl affinity explain --live.
type liveFlags struct {
	live                            bool
	namespace, controllersNamespace string
}

// addLive adds --live to a command that reads files.
func addLive(cmd *cobra.Command, format *output) {
	var f liveFlags
	cmd.Flags().BoolVar(&f.live, "live", false, "explain a POD of the cluster, which kubectl reads")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "with --live, the pod is in this `NAMESPACE` instead of kubectl's default")
	cmd.Flags().StringVar(&f.controllersNamespace, "controller-namespace", "",
		"with --live, read the settings of evictd-controller in this `NAMESPACE` instead of the defaults")
	k := addKubectlFlags(cmd)
	cmd.Args = cobra.ArbitraryArgs
	files := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !f.live {
			for _, name := range []string{"namespace", "controller-namespace", "kubectl", "kubeconfig", "context"} {
				if cmd.Flags().Changed(name) {
					return usagef("--%s needs --live", name)
				}
			}
			if len(args) > 0 {
				return usagef("%s needs --live for the pod %q of a cluster, or -f FILE", cmd.CommandPath(), args[0])
			}
			return files(cmd, args)
		}
		if err := f.check(cmd, args); err != nil {
			return err
		}
		x, err := explainLive(cmd.Context(), &f, &livePod{kubectl: k, now: time.Now()}, args[0])
		if err != nil {
			return &inputError{problems: []string{err.Error()}}
		}
		if *format == outputJSON {
			err = printJSON(cmd.OutOrStdout(), x)
		} else {
			err = livePage(x).print(cmd.OutOrStdout())
		}
		switch {
		case err != nil:
			return err
		case len(x.Unreadable) > 0:
			return &inputError{problems: []string{fmt.Sprintf("%s: annotation %s can't be read; correct it", x.Pod, affinity.Annotation)}}
		case x.Violates || x.Pending && !slices.ContainsFunc(x.Compared, func(e affinityExplained) bool { return e.Match }):
			return errReported
		}
		return nil
	}
}

// explainLive reads and explains a pod.
func explainLive(ctx context.Context, f *liveFlags, l *livePod, name string) (*liveExplained, error) {
	if err := l.read(ctx, f, name); err != nil {
		return nil, err
	}
	return l.explain()
}

// check checks the flags and the arguments of --live. A name that begins with a dash would be a flag of kubectl.
func (f *liveFlags) check(cmd *cobra.Command, args []string) error {
	for _, name := range []string{"file", "node"} {
		if cmd.Flags().Changed(name) {
			return usagef("--live reads the cluster: leave --%s out", name)
		}
	}
	if len(args) != 1 {
		return usagef("--live needs the name of one POD")
	}
	if len(validation.IsDNS1123Subdomain(args[0])) > 0 {
		return usagef("%q is not the name of a pod", args[0])
	}
	return nil
}

// livePod is a pod of a cluster, and what a decision about it depends on.
type livePod struct {
	kubectl *kubectl
	now     time.Time

	pod   *corev1.Pod
	nodes []*corev1.Node
	own   *corev1.Node // nil if the pod is not bound, or its Node does not exist
	// fenced has the nodes with a fence that has not ended.
	fenced map[string]bool
	stale  bool
	// lease says how old the Lease of the node is.
	lease  string
	config affinity.Config
	// settings says which settings these are, and mistakes are those in them.
	settings string
	mistakes []string
	// events are those of evictd-controller, nil if they could not be read.
	events []corev1.Event
	// notRead is what could not be read, with the reason.
	notRead []string
}

// read reads the pod and the nodes, without which nothing can be explained, and what else there is.
func (l *livePod) read(ctx context.Context, f *liveFlags, name string) error {
	args := []string{"pods", name}
	if f.namespace != "" {
		args = append(args, "--namespace="+f.namespace)
	}
	l.pod = &corev1.Pod{}
	if err := l.kubectl.get(ctx, l.pod, args...); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := l.kubectl.get(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if l.nodes = append(l.nodes, n); n.Name == l.pod.Spec.NodeName {
			l.own = n
		}
	}
	slices.SortFunc(l.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	l.readSettings(ctx, f.controllersNamespace)
	l.readFences(ctx)
	if l.own != nil {
		l.readLease(ctx)
	}
	l.readEvents(ctx)
	return nil
}

// missed notes what could not be read. It reports whether there is an error.
func (l *livePod) missed(what string, err error) bool {
	if err != nil {
		l.notRead = append(l.notRead, what+": "+err.Error())
	}
	return err != nil
}

// readSettings reads the settings of evictd-controller.
func (l *livePod) readSettings(ctx context.Context, namespace string) {
	l.config, l.settings = affinity.DefaultConfig(), "the defaults; --controller-namespace reads those of evictd-controller"
	if namespace == "" {
		return
	}
	var list corev1.ConfigMapList
	err := l.kubectl.get(ctx, &list, "configmaps", "--namespace="+namespace, "--field-selector=metadata.name="+settings.Name)
	if l.missed("the settings of evictd-controller, so these are the defaults", err) {
		return
	}
	l.settings = fmt.Sprintf("the defaults: namespace %s has no ConfigMap %s", namespace, settings.Name)
	for _, m := range list.Items {
		l.settings = fmt.Sprintf("ConfigMap %s/%s", namespace, settings.Name)
		data := m.Data
		if data == nil {
			data = map[string]string{}
		}
		l.config, l.mistakes = settings.Parse(data, true)
	}
}

// readFences reads which nodes are fenced. A cluster without fencing has no NodeFences.
func (l *livePod) readFences(ctx context.Context) {
	list, err := listFences(ctx, l.kubectl)
	if l.missed("the fences of nodes", err) {
		return
	}
	l.fenced = map[string]bool{}
	for i := range list {
		if list[i].State.FinishedAt.IsZero() {
			l.fenced[list[i].Node] = true
		}
	}
}

// readLease reads whether the pod's node renews its Lease. The clock is that of this machine.
func (l *livePod) readLease(ctx context.Context) {
	var list coordinationv1.LeaseList
	err := l.kubectl.get(ctx, &list, "leases.coordination.k8s.io", "--namespace=kube-node-lease", "--field-selector=metadata.name="+l.own.Name)
	if l.missed("the Lease of node "+l.own.Name, err) {
		return
	}
	l.stale, l.lease = true, "the node has none"
	for _, lease := range list.Items {
		if t := lease.Spec.RenewTime; t != nil {
			age := l.now.Sub(t.Time)
			l.stale = age.Abs() > affinity.LeaseDuration
			l.lease = fmt.Sprintf("renewed at %s, %s ago by the clock of this machine", at(t.Time), span(age))
		}
	}
}

// readEvents reads the events of evictd-controller at the pod, newest last.
func (l *livePod) readEvents(ctx context.Context) {
	var list corev1.EventList
	err := l.kubectl.get(ctx, &list, "events", "--namespace="+l.pod.Namespace, "--field-selector=involvedObject.uid="+string(l.pod.UID))
	if l.missed("the events of the pod", err) {
		return
	}
	reasons := affinity.EventReasons()
	l.events = slices.DeleteFunc(append([]corev1.Event{}, list.Items...), func(e corev1.Event) bool { return !slices.Contains(reasons, e.Reason) })
	slices.SortStableFunc(l.events, func(a, b corev1.Event) int { return lastOf(&a).Compare(lastOf(&b)) })
}

// lastOf returns when an event happened last. Which field has it depends on the version of the API that wrote it.
func lastOf(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// countOf returns how often an event happened.
func countOf(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(1, e.Series.Count)
	}
	return max(1, e.Count)
}

// held returns what evictd-controller's own decision is if the violation is older than the debounce, and nothing is in
// the way that these objects don't have. It is empty if the pod would be evicted.
func (l *livePod) held(r *affinity.Requirement, v affinity.Verdict) affinity.Hold {
	pod := affinity.PodOf(l.pod)
	pod.Requirement, pod.Verdict = r, v
	began := l.now.Add(-l.config.Debounce - time.Second)
	before := affinity.State{Violations: map[types.UID]affinity.Violation{
		pod.UID: {Pod: pod.PodKey, Node: pod.Node, Since: began, Steady: began},
	}}
	in := affinity.Inputs{
		Violating: []affinity.Pod{pod}, Config: l.config,
		Workloads: map[string]affinity.Workload{pod.Workload: {Desired: 1, Ready: 1, Budget: true}},
	}
	in.Config.Enforce = true
	for _, n := range l.nodes {
		facts := affinity.NodeOf(n, l.fenced[n.Name])
		facts.Stale = n == l.own && l.stale
		in.Nodes = append(in.Nodes, facts)
	}
	after, _ := affinity.Step(before, in, l.now)
	return after.Violations[pod.UID].Held
}

// explain compares the pod with its node, with all if it is Pending. The error is that of a pod that can't be compared.
func (l *livePod) explain() (*liveExplained, error) {
	x := &liveExplained{
		Pod: "Pod " + l.pod.Namespace + "/" + l.pod.Name, UID: string(l.pod.UID), Node: l.pod.Spec.NodeName, Pending: l.pod.Spec.NodeName == "",
		NodeFound: l.own != nil, Lease: l.lease, Settings: l.settings, Mistakes: orEmpty(l.mistakes), NotRead: orEmpty(l.notRead),
		Unreadable: []string{}, Reasons: []string{}, Compared: []affinityExplained{}, Events: []liveEvent{}, eventsRead: l.events != nil,
	}
	for i := range l.events {
		e := &l.events[i]
		x.Events = append(x.Events, liveEvent{lastOf(e).UTC(), countOf(e), e.Reason, e.Message})
	}
	requirement, err := affinity.NewSchedulingRequirement(l.pod)
	if err != nil {
		x.Unreadable = unreadable(err)
		return x, nil
	}
	preferred, err := affinity.NewPreferred(l.pod)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.Pod, err)
	}
	in := &affinityReader{nodes: l.nodes, pods: []affinityPod{{
		place: "UID " + x.UID, name: x.Pod, requirement: requirement, preferred: preferred, differences: affinity.Differences(l.pod),
	}}}
	switch {
	case l.own != nil:
		in.nodes = []*corev1.Node{l.own}
	case !x.Pending:
		return x, nil
	}
	x.Compared = explainAll(in)
	if l.own == nil {
		return x, nil
	}
	verdict := requirement.Violates(l.own, l.config.EnforceIgnored)
	if x.Violates = !verdict.Match; !x.Violates {
		return x, nil
	}
	for _, reason := range verdict.Reasons {
		x.Reasons = append(x.Reasons, reason.Message())
	}
	if hold := l.held(requirement, verdict); hold != "" {
		advice := hold.Advice()
		x.Hold = &liveHold{string(hold), advice.Meaning, advice.Remedy}
		if hold == affinity.HoldStorm && l.config.StormConfirmed != "" {
			x.Settings += "; if its storm_confirmed is the id of this storm, that does not hold the pod back"
		}
	}
	return x, nil
}

// unreadable returns the mistakes of an annotation.
func unreadable(err error) []string {
	var problems *affinity.AnnotationError
	if !errors.As(err, &problems) {
		return []string{err.Error()}
	}
	list := []string{}
	for _, p := range problems.Problems {
		list = append(list, strings.TrimSpace(p.String()))
	}
	return list
}

func orEmpty(list []string) []string { return append([]string{}, list...) }
