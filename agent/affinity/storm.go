package affinity

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// clusterStorm is the key in State.Storms of the storm of too many nodes.
const clusterStorm = ""

// findStorms finds the storms that are going on, and the candidates that they hold back:
//
//   - Pods violate on more nodes than Config.StormPercentage allows: no pod is evicted. Pods that are never evicted
//     don't count, so that a DaemonSet with an annotation holds back no others, and neither do pods whose violation
//     began with their binding or with a change of their annotation: whoever may create a pod, or change one, could
//     stop all evictions. Pods in their debounce count.
//   - A label key that a pod lacks is on no node at all, as when the publisher of the label restarts: the pods that
//     lack it are not evicted. Others are: else whoever may create a pod could stop all evictions by naming a key that
//     never existed. That the key existed is not asked, as that is not known after a restart of the controller.
//
// The id of a storm depends on its kind, its key and the second in which it began. Confirming it does not confirm the
// next one.
func (r *run) findStorms() {
	exempt := make([]bool, len(r.candidates))
	affected := map[string]bool{}
	for i, c := range r.candidates {
		if exempt[i] = r.exempt(c) != ""; !exempt[i] && c.node != nil && !c.pod.Own {
			affected[c.pod.Node] = true
		}
	}
	storms := map[string]*Storm{}
	if len(affected) > r.allowedNodes() {
		r.addStorm(storms, clusterStorm)
	}
	var keys map[string]bool
	for i, c := range r.candidates {
		if exempt[i] {
			continue
		}
		if s := storms[clusterStorm]; s != nil {
			c.hold(clusterStorm, s, r.in.Config)
		}
		for _, reason := range c.pod.Verdict.Reasons {
			if reason.Present || reason.Field || reason.Key == "" {
				continue
			}
			if keys == nil {
				keys = r.labelKeys()
			}
			if !keys[reason.Key] {
				c.hold(reason.Key, r.addStorm(storms, reason.Key), r.in.Config)
			}
		}
	}
	r.saveStorms(storms)
}

// hold has the first storm that is not confirmed hold the pod back.
func (c *candidate) hold(key string, s *Storm, cfg Config) {
	if c.storm == nil && !cfg.confirmed(s.ID) {
		c.stormKey, c.storm = key, s
	}
}

func (r *run) allowedNodes() int {
	return max(1, len(r.nodes)*r.in.Config.StormPercentage/100)
}

func (r *run) labelKeys() map[string]bool {
	keys := map[string]bool{}
	for _, n := range r.nodes {
		for key := range n.Object.Labels {
			keys[key] = true
		}
	}
	return keys
}

func (r *run) addStorm(storms map[string]*Storm, key string) *Storm {
	if s := storms[key]; s != nil {
		return s
	}
	s, ok := r.s.Storms[key]
	if !ok {
		kind := "key"
		if key == clusterStorm {
			kind = "nodes"
		}
		h := fnv.New32a()
		fmt.Fprintf(h, "%s\x00%s\x00%d", kind, key, r.now.Unix())
		s = Storm{ID: fmt.Sprintf("%s-%08x", kind, h.Sum32()), Since: r.now}
	}
	storms[key] = &s
	return &s
}

func (r *run) saveStorms(storms map[string]*Storm) {
	r.s.Storm, r.s.Storms = "", nil
	if len(storms) == 0 {
		return
	}
	r.s.Storms = make(map[string]Storm, len(storms))
	first, found := "", false
	for key, s := range storms {
		r.s.Storms[key] = *s
		if !found || key < first {
			first, found = key, true
		}
	}
	r.s.Storm = storms[first].ID
}

// confirmed reports whether a person has confirmed the storm with this id.
func (c Config) confirmed(id string) bool {
	return slices.ContainsFunc(strings.Split(c.StormConfirmed, ","), func(s string) bool {
		return strings.TrimSpace(s) == id
	})
}
