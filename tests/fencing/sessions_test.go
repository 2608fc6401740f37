package fencing

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/bmc"
)

// topUpInterval is how often a session is opened that the BMC has ended since.
const topUpInterval = 100 * time.Millisecond

// occupied are the sessions of a BMC that another client has opened and does not end: all.
type occupied struct {
	t       *testing.T
	host    string
	port    int
	open    []*client.Client
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// occupy opens all sessions of a BMC, and opens them again when the BMC has ended them, until free is called.
func occupy(t *testing.T, s *bmc.Simulator) *occupied {
	t.Helper()
	host, port, err := net.SplitHostPort(s.Endpoint())
	must(t, err)
	o := &occupied{t: t, host: host}
	o.port, err = strconv.Atoi(port)
	must(t, err)
	o.fill(t.Context())
	if len(o.open) < 10 {
		t.Fatalf("%d sessions of the BMC were opened; want more", len(o.open))
	}
	t.Logf("%d sessions of the BMC are open", len(o.open))
	ctx, cancel := context.WithCancel(t.Context())
	o.cancel = cancel
	o.running.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(topUpInterval):
				o.fill(ctx)
			}
		}
	})
	return o
}

// fill opens sessions until the BMC has no more.
func (o *occupied) fill(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := client.NewClient(o.host, o.port, username, password)
		if err != nil {
			o.t.Error(err)
			return
		}
		if err := c.WithCipherSuiteID(types.CipherSuiteID3).WithTimeout(time.Second).WithRetry(0).Connect(ctx); err != nil {
			return
		}
		o.open = append(o.open, c)
	}
}

// free ends all sessions.
func (o *occupied) free() {
	o.cancel()
	o.running.Wait()
	for _, c := range o.open {
		_ = c.Close(context.Background()) // the BMC may have ended it
	}
}

// TestFenceNoFreeSession: another client has all sessions of the BMC of a lost node. Nothing is switched or released, and
// the NodeFence says why, also when the attempts are used up. When the sessions are ended, the fence goes on by itself.
func TestFenceNoFreeSession(t *testing.T) {
	t.Parallel()
	const why = "all sessions of the BMC are in use: end those of other clients"
	c, _ := startFencing(t, policy(map[string]string{"proof_timeout": "6s", "giveup_retries": "0", "untaint_delay": "1s", "healthy_delay": "1s"}))
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	o := occupy(t, c.BMCs["a"])
	began := time.Now()
	c.Machines["a"].Isolate()
	awaitFence(t, c, "the end of the attempts", func(_ *fence.Progress, d *fence.Detail) bool {
		gaveUp := meta.FindStatusCondition(d.Conditions, fence.ConditionGaveUp)
		return gaveUp != nil && strings.Contains(gaveUp.Message, why)
	})
	wantKept(t, c, check(t, c, began), uid)
	if calls, err := c.BMCs["a"].Log(); err != nil || len(calls) > 0 {
		t.Errorf("the BMC got %+v, %v; want nothing", calls, err)
	}
	o.free()
	must(t, c.AwaitRecovery(t.Context(), "a", "b"))
	wantRecovered(t, c, began, boot, uid)
}
