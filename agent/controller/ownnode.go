package controller

import (
	"context"
	"fmt"
	"time"
)

// ownNodeGrace is how long the controller's own node may be not Ready.
const ownNodeGrace = 30 * time.Second

// ownNode is the node that the controller runs on. While it is not Ready, the controller may be about to lose its
// network, and can't fence the node: another replica must.
type ownNode struct {
	// name is empty if the node is none of the cluster, or no other replica can become the leader.
	name string
	live liveReader
	// warn is called once if the node is not Ready and there is no other replica.
	warn func()

	since time.Time // since when the node is seen as not Ready
	alone bool
}

// newOwnNode returns the node that the controller runs on.
func newOwnNode(o *Options, live liveReader) *ownNode {
	n := &ownNode{live: live}
	if o.LeaderElect {
		n.name = o.NodeName
	}
	n.warn = func() {
		o.Log.Warn("the node of the controller is not Ready, and no replica can become the leader; fencing goes on",
			"node", n.name)
	}
	return n
}

// check returns an error if the node is not Ready for ownNodeGrace, and another replica is ready on another node. It
// reads the Node from the API server.
func (o *ownNode) check(ctx context.Context) error {
	if o.name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leasePeriod)
	defer cancel()
	node, err := o.live.node(ctx, o.name)
	if err != nil {
		return nil // without the API server the leadership ends by itself
	}
	if node == nil || ready(node) {
		o.since, o.alone = time.Time{}, false
		return nil
	}
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	if now.Sub(o.since) < ownNodeGrace {
		return nil
	}
	other, err := o.live.replica(ctx, o.name)
	if err != nil {
		return nil // it is asked again
	}
	if other == "" {
		if !o.alone {
			o.warn()
		}
		o.alone = true
		return nil
	}
	return fmt.Errorf("the leader's node %s is not Ready since %s: the leadership is given up; pod %s can become the leader",
		o.name, o.since.UTC().Format(time.RFC3339), other)
}
