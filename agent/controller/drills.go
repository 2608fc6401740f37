package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
)

const (
	// drillsName is the name of the ConfigMap with what drills have shown. It is in the controller's namespace and not in
	// an annotation of the Node: kubelets may write those of their own Nodes.
	drillsName = "evictd-fence-drills"
	// reasonDrillNotKept is the reason of the event about a drill that could not be kept.
	reasonDrillNotKept = "DrillNotKept"
)

// drills are what drills have shown, by node: lines that begin with a digest; see [fence.DrillDigest].
type drills map[string][]string

// digest returns the digest that a line begins with.
func digest(line string) string {
	digest, _, _ := strings.Cut(line, " ")
	return digest
}

// digests returns what drills of a node have shown.
func (d drills) digests(node string) []string {
	var list []string
	for _, line := range d[node] {
		list = append(list, digest(line))
	}
	return list
}

// drillsOf reads the ConfigMap with the name [drillsName] of a list. The value of a node has one line for each level, a
// digest and a time. The time is for people.
//
//	worker-1: v1-8e6c…0a31 2026-11-24T18:00:00Z
func drillsOf(maps []corev1.ConfigMap) drills {
	i := slices.IndexFunc(maps, func(m corev1.ConfigMap) bool { return m.Name == drillsName })
	if i < 0 {
		return nil
	}
	d := make(drills, len(maps[i].Data))
	for node, text := range maps[i].Data {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				d[node] = append(d[node], line)
			}
		}
	}
	return d
}

// keepDrill adds what a drill has shown to the ConfigMap. What is there of levels that the plan does not have is
// removed, and so is that of nodes without a configuration. If it can never be kept, that is reported, and the drill
// ends all the same.
func (p *pass) keepDrill(ctx context.Context, state *fence.State, shown string) error {
	known := p.reconciler.config.drilled()
	data := map[string]any{}
	for node := range known {
		if _, planned := p.config.Plans[node]; !planned && !slices.Contains(p.config.Refused, node) {
			data[node] = nil
		}
	}
	var wanted []string
	node := fence.Node{UID: state.Target.UID, SystemUUID: state.Target.SystemUUID}
	for _, l := range p.config.Plans[p.name].PowerManagement {
		wanted = append(wanted, fence.DrillDigest(node, l))
	}
	text := shown + " " + time.Now().UTC().Format(time.RFC3339) + "\n"
	for _, line := range known[p.name] {
		if d := digest(line); d != shown && slices.Contains(wanted, d) {
			text += line + "\n"
			wanted = slices.DeleteFunc(wanted, func(w string) bool { return w == d })
		}
	}
	data[p.name] = text
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("patch of ConfigMap %s: %w", drillsName, err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.observer.live.namespace, Name: drillsName}}
	err = p.writer.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		m.Data = map[string]string{p.name: text}
		err = p.writer.Create(ctx, m)
	}
	switch {
	case err == nil:
		p.log.Info("what a drill has shown is kept", "node", p.name, "configmap", m.Namespace+"/"+m.Name, "digest", shown)
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		message := fmt.Sprintf("what the drill has shown could not be kept in ConfigMap %s/%s, and does not count: %v", m.Namespace, m.Name, err)
		p.log.Error("drill not kept", "node", p.name, "error", err)
		if p.node != nil {
			p.recorder.event(p.node, true, reasonDrillNotKept, "Fence", message)
		}
		return nil
	}
	return fmt.Errorf("keep what a drill has shown in ConfigMap %s: %w", drillsName, err)
}
