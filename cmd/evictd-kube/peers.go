package main

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/cluster"
	"github.com/evictd/evictd/agent/selffence/peers"
)

// peering are the flags of the majority of nodes.
type peering struct{ listen, key, state string }

func (p *peering) register(flags *flag.FlagSet) {
	flags.StringVar(&p.listen, "peers", "", "ask the other nodes whether they reach the API server, and answer them, on the UDP `ADDRESS:PORT`; all nodes need the same port, e.g. :9448. Off without it")
	flags.StringVar(&p.key, "peers-key", "/etc/evictd/peers.key", "read the key that all nodes share from `FILE`: one line of at least 32 characters, and a second one while it is changed")
	flags.StringVar(&p.state, "peers-state", "/run/evictd-kube/nodes", "keep the list of all nodes in `FILE`, which should be lost at a reboot")
}

// check returns what is wrong with the flags; "" if nothing is.
func (p *peering) check() string {
	if p.listen == "" {
		return ""
	}
	if _, port, err := net.SplitHostPort(p.listen); err != nil || port == "" || port == "0" {
		return "--peers is not ADDRESS:PORT or :PORT"
	}
	return ""
}

// start runs the questions and answers until ctx ends; it returns nil if they are off.
func (p *peering) start(ctx context.Context, parts *sync.WaitGroup, node string, feed *kube.Feed, marks *cluster.Marks, log *slog.Logger) *cluster.PeerNodes {
	if p.listen == "" {
		return nil
	}
	service := peers.New(peers.Options{
		Node: node, Listen: p.listen, KeyFile: p.key, StateFile: p.state, Uptime: uptime,
		Reach: marks.Reach, Changed: feed.SendState, Log: log,
	})
	feed.Peers = service.Count
	nodes := cluster.NewPeerNodes(service, uptime, log)
	parts.Go(func() { service.Run(ctx) })
	parts.Go(func() { nodes.Run(ctx) })
	return nodes
}

// uptime returns the time since the boot, evictd's clock.
func uptime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
