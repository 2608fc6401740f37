package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// Node is a node of the cluster.
type Node struct {
	Name string `json:"name"`
	// Address is its first internal address; not valid if it has none.
	Address netip.Addr `json:"address"`
}

// List is the list of all nodes.
type List struct {
	// At and Read are when it was read, as the time since the boot and by the wall clock.
	At    time.Duration `json:"at"`
	Read  time.Time     `json:"read"`
	Nodes []Node        `json:"nodes"`
}

// maxList is the length limit of a saved list in bytes.
const maxList = 8 << 20

// check validates a list. A name must occur once: it is counted once.
func (l *List) check() error {
	if len(l.Nodes) == 0 || len(l.Nodes) > selffence.MaxNodes {
		return fmt.Errorf("%d nodes; want 1 to %d", len(l.Nodes), selffence.MaxNodes)
	}
	names := make(map[string]bool, len(l.Nodes))
	for _, n := range l.Nodes {
		if n.Name == "" || len(n.Name) > maxName || names[n.Name] {
			return fmt.Errorf("node name %q is empty, too long or repeated", n.Name)
		}
		names[n.Name] = true
	}
	return nil
}

// age returns the age of a list; negative without one.
func (l *List) age(now time.Duration) time.Duration {
	if l == nil {
		return -1
	}
	return max(0, now-l.At)
}

// load reads a saved list; nil without one. Its age is what the clock says that says more. The file should be lost at a
// reboot; without that a clock that was set back can make a list of an earlier boot too young.
func load(path string, now time.Duration) (*List, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxList))
	if err != nil {
		return nil, err
	}
	l := &List{}
	if err := json.Unmarshal(content, l); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if l.At > now { // of an earlier boot
		return nil, nil
	}
	l.At = min(l.At, now-time.Since(l.Read))
	return l, nil
}

// save writes the list.
func (l *List) save(path string) error {
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
