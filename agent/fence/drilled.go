package fence

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// drillSlack is how long after the last act of a drill its node may be seen to renew its Lease: the interval of the
// kubelet and that of the list of Leases, and some more. A node that renews it later runs although its plug is off.
const drillSlack = 30 * time.Second

// unidentified reports whether nothing but a drill can show that the level switches the node's machine: it switches
// off, and none of the devices is compared with the node.
func (l Level) unidentified() bool {
	off := l.off()
	return len(off) > 0 && !slices.ContainsFunc(off, func(m Method) bool { return m.Identity != CheckNone })
}

// NeedsDrill reports whether the level proves something only if a drill has shown that it switches the node's machine
// off.
func (l Level) NeedsDrill() bool {
	return l.unidentified() && slices.ContainsFunc(l.off(), func(m Method) bool { return m.Unverified != Accept })
}

// off returns the methods that switch off.
func (l Level) off() []Method {
	return slices.DeleteFunc(slices.Clone(l.Methods), func(m Method) bool { return m.Action != Off })
}

// DrillDigest identifies what the drill of a level shows: that these plugs of these devices, together, are the power of
// the machine of this node. It has the Node's UID and systemUUID, and of each method that switches off the agent, the
// device and all parameters but passwords and keys: those in Secrets as [Method.SecretDigest]. The order of the methods,
// deadlines and executors are not part of it.
func DrillDigest(n Node, l Level) string {
	type plug struct {
		Agent, Device string
		Parameters    map[string]string `json:",omitempty"`
		SecretDigest  string            `json:",omitempty"`
	}
	var plugs []plug
	for _, m := range l.off() {
		plugs = append(plugs, plug{m.Agent, m.Device, m.Parameters, m.SecretDigest})
	}
	slices.SortFunc(plugs, func(a, b plug) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Agent, b.Agent),
			cmp.Compare(fmt.Sprint(a.Parameters), fmt.Sprint(b.Parameters)), cmp.Compare(a.SecretDigest, b.SecretDigest))
	})
	text, err := json.Marshal(struct {
		UID, SystemUUID string
		Plugs           []plug
	}{n.UID, n.SystemUUID, plugs}) // with sorted keys in maps
	if err != nil {
		panic(fmt.Sprintf("marshal the plugs of a level: %v", err)) // it has only strings
	}
	sum := sha256.Sum256(text)
	return drillVersion + hex.EncodeToString(sum[:16])
}

// drillVersion begins each digest. Another version is another digest of the same plugs, which must be drilled again.
const drillVersion = "v1-"

// Drilled returns the plan without what nothing has shown to be of the node. Levels of Power-Management that need a
// drill are left out, unless their digest is one of those of the node's drills. Isolation releases no storage if one of
// the ports is not compared with the node: no drill shows what a port cuts off. LeftOut says what is missing.
func (p Plan) Drilled(n Node, digests []string) Plan {
	var power []Level
	p.LeftOut = nil
	for i, l := range p.PowerManagement {
		if l.NeedsDrill() && !slices.Contains(digests, DrillDigest(n, l)) {
			p.LeftOut = append(p.LeftOut, fmt.Sprintf("level %d of power_management (%s) is not used: no drill of this node has "+
				"shown that it switches its machine off", i+1, names(l.off())))
			continue
		}
		power = append(power, l)
	}
	p.PowerManagement = power
	p.Isolation = slices.Clone(p.Isolation)
	for i, l := range p.Isolation {
		if !l.assumed() {
			continue
		}
		methods := slices.Clone(l.Methods)
		for j := range methods {
			methods[j].Releases = nil
		}
		p.Isolation[i].Methods = methods
		p.LeftOut = append(p.LeftOut, fmt.Sprintf("level %d of isolation (%s) releases nothing: no drill can show what it cuts off",
			i+1, names(l.off())))
	}
	return p
}

// assumed reports whether the level of Isolation would release storage although a method that switches off is neither
// compared with the node nor accepted without that.
func (l Level) assumed() bool {
	releases := func(m Method) bool { return len(m.Releases) > 0 }
	unverified := func(m Method) bool { return m.Identity == CheckNone && m.Unverified != Accept }
	return slices.ContainsFunc(l.Methods, releases) && slices.ContainsFunc(l.off(), unverified)
}

// names lists methods.
func names(methods []Method) string {
	var list []string
	for i, m := range methods {
		if i == maxNamed {
			return strings.Join(list, ", ") + fmt.Sprintf(" and %d more", len(methods)-i)
		}
		list = append(list, m.Name)
	}
	return strings.Join(list, ", ")
}

// whole says how the node can be fenced with all that its plan has.
const whole = "drill the node with evictctl fence drill, or write unverified=accept in the fence-method"

// reportLeftOut reports what is missing in the plan.
func (r *run) reportLeftOut() {
	if left := r.s.Plan.LeftOut; len(left) > 0 {
		r.set(ConditionNotDrilled, "NoDrill", strings.Join(left, "; ")+": "+whole)
	}
}

// powerPlanned reports whether Power-Management follows. If all levels are left out it ends at once.
func (s *State) powerPlanned() bool { return len(s.Plan.PowerManagement)+len(s.Plan.LeftOut) > 0 }

// shows returns what a drill shows once its node is back with a new boot ID, empty if it shows nothing: only its first
// level was used, and the node was not seen to run after that.
func (r *run) shows() string {
	s := r.s
	if !s.Drill || s.Level != 0 || s.Resumed || len(s.Plan.PowerManagement) == 0 || !s.Plan.PowerManagement[0].unidentified() {
		return ""
	}
	if r.in.Lease.UnchangedSince.After(s.LastAct.Add(drillSlack)) {
		return ""
	}
	return DrillDigest(Node{UID: s.Target.UID, SystemUUID: s.Target.SystemUUID}, s.Plan.PowerManagement[0])
}

// drillEnded orders to keep what the drill has shown, or reports that it has shown nothing.
func (r *run) drillEnded() {
	s := r.s
	if !s.Drill || len(s.Plan.PowerManagement) == 0 || !s.Plan.PowerManagement[0].unidentified() {
		return
	}
	off := names(s.Plan.PowerManagement[0].off())
	if s.Shows == "" || s.Phase != Released || s.Proof == nil || s.Proof.How != ByReadings || !r.rebooted() {
		r.note(warning(ReasonDrillShowedNothing, "the drill has not shown that the node's machine is switched by "+off+
			": the node was not seen to go down at once and to come back with a new boot ID"))
		return
	}
	r.orders.Drilled = s.Shows
	r.note(normal(ReasonDrillShowed, "the drill has shown that the node's machine is switched by "+off))
}
