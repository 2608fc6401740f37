package fence

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkStorm measures one pass over 50 nodes of a cluster that fail at once, whose fences begin: the storm policy,
// with Step, for each of them.
func BenchmarkStorm(b *testing.B) {
	const failing = 50
	for _, count := range []int{1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			nodes := make([]Member, count)
			fences := make([]State, failing)
			inputs := make([]Inputs, failing)
			for i := range nodes {
				m := &nodes[i]
				m.Node = Node{Found: true, Name: fmt.Sprint("node-", i), UID: fmt.Sprint("uid-", i), Ready: ReadyTrue, SystemUUID: uuid}
				m.Lease = Lease{Known: true, Found: true, Renewed: begin, UnchangedSince: begin}
				if i >= failing {
					continue
				}
				m.Node.Ready = ReadyUnknown
				m.Lease.Renewed, m.Lease.UnchangedSince = begin.Add(-2*time.Minute), begin.Add(-2*time.Minute)
				target := Target{UID: m.Node.UID, LeaseRenewed: micro(m.Lease.Renewed)}
				fences[i] = State{Node: m.Node.Name}
				fences[i].Target, fences[i].Plan = target, powerPlan(level(true, "bmc"))
				fences[i].Step, fences[i].Status = Isolation, New
				inputs[i] = Inputs{Node: m.Node, Lease: m.Lease, Load: Load{PodsKnown: true, AttachmentsKnown: true}, Executor: "e1"}
			}
			policy := DefaultPolicy()
			open := 0
			for b.Loop() {
				for i := range fences {
					in := inputs[i]
					in.Gate = Storm(in.Node.Name, nodes, fences, policy, begin)
					if in.Gate.Open {
						open++
					}
					Step(fences[i], in, begin)
				}
			}
			if open != failing*b.N {
				b.Errorf("the gate was open %d times in %d passes; want %d", open, b.N, failing*b.N)
			}
		})
	}
}
