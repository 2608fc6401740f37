package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/selffence/peers"
)

const (
	// nodesInterval is the time between two lists of all nodes, a tenth more or less.
	nodesInterval = 10 * time.Minute
	// The back-off after a list could not be read.
	firstNodesBackoff, longestNodesBackoff = 10 * time.Second, 5 * time.Minute
	// nodesPage is the number of nodes in a request.
	nodesPage = 500
	// asTable asks for the columns that kubectl get shows: about 300 bytes of a node, of which the object can have 50
	// KB.
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// PeerNodes lists all nodes of the cluster for agent/selffence/peers.
type PeerNodes struct {
	service *peers.Service
	uptime  func() (time.Duration, error)
	log     *slog.Logger
	wake    chan struct{}

	mu         sync.Mutex
	connection *connection // nil before the first
}

// NewPeerNodes returns PeerNodes that have listed nothing.
func NewPeerNodes(service *peers.Service, uptime func() (time.Duration, error), log *slog.Logger) *PeerNodes {
	return &PeerNodes{service: service, uptime: uptime, log: log, wake: make(chan struct{}, 1)}
}

// connected makes c the connection for all further requests.
func (p *PeerNodes) connected(c *client, reload func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connection = &connection{c, reload}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run lists the nodes until ctx ends.
func (p *PeerNodes) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.wake:
	}
	backoff, last := firstNodesBackoff, ""
	for {
		wait := nodesInterval*9/10 + rand.N(nodesInterval/5)
		err := p.list(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			backoff, last = firstNodesBackoff, ""
		} else {
			wait, backoff = backoff/2+rand.N(backoff/2), min(2*backoff, longestNodesBackoff)
			if text := err.Error(); text != last {
				last = text
				p.log.Warn("could not list all nodes for the majority of peers; the last list stays in use until it is too old", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// list lists the nodes once.
func (p *PeerNodes) list(ctx context.Context) error {
	at, err := p.uptime()
	if err != nil {
		return err
	}
	p.mu.Lock()
	c := p.connection
	p.mu.Unlock()
	nodes, err := c.listNodes(ctx)
	if err != nil {
		err = c.files.explain(err)
		c.renew(err)
		return err
	}
	return p.service.SetNodes(nodes, at)
}

// listNodes returns all nodes, which are those of one version of the cluster: later pages are of the version of the
// first.
func (c *client) listNodes(ctx context.Context) ([]peers.Node, error) {
	var nodes []peers.Node
	for next := ""; ; {
		table, err := c.nodesPage(ctx, next)
		if err != nil {
			return nil, err
		}
		if nodes, err = appendNodes(nodes, table); err != nil {
			return nil, err
		}
		if next = table.Continue; next == "" {
			return nodes, nil
		}
		if len(nodes) > selffence.MaxNodes {
			return nil, fmt.Errorf("more than %d nodes", selffence.MaxNodes)
		}
	}
}

func (c *client) nodesPage(ctx context.Context, next string) (*metav1.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := c.rest.Get().MaxRetries(0).Resource("nodes").Param("limit", fmt.Sprint(nodesPage)).Param("includeObject", "None").SetHeader("Accept", asTable)
	if next != "" {
		request.Param("continue", next)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	content, err := result.Raw()
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(content, table); err != nil {
		return nil, fmt.Errorf("decode the list of nodes: %w", err)
	}
	return table, nil
}

var errNoColumns = errors.New("the API server's list of nodes lacks the columns Name and Internal-IP")

// appendNodes adds the nodes of a table. A node without an address is counted, too.
func appendNodes(nodes []peers.Node, table *metav1.Table) ([]peers.Node, error) {
	name, address := -1, -1
	for i, column := range table.ColumnDefinitions {
		switch column.Name {
		case "Name":
			name = i
		case "Internal-IP":
			address = i
		}
	}
	if name < 0 || address < 0 {
		return nil, errNoColumns
	}
	for _, row := range table.Rows {
		if len(row.Cells) <= max(name, address) {
			return nil, errors.New("the API server's list of nodes has a row without an address")
		}
		text, ok := row.Cells[name].(string)
		if !ok {
			return nil, errNoColumns
		}
		node := peers.Node{Name: text}
		if ip, ok := row.Cells[address].(string); ok {
			node.Address, _ = netip.ParseAddr(ip) // "<none>" is none
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}
