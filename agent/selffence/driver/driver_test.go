package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/watchdog"
)

// node is a node with a watchdog that fires, and an evictd-kube that answers.
type node struct {
	t       *testing.T
	driver  *Driver
	log     kerneltest.Buffer
	options Options
	end     func() // as a crash does

	mu       sync.Mutex
	accepts  bool
	adverts  []string // as "armed" or "withdrawn"
	planned  string
	info     watchdog.Info
	openErr  error
	timeout  time.Duration
	deadline time.Time     // zero while it is not armed
	slow     time.Duration // of the next feeding
}

// newNode returns a node in dry run or not, in a bubble of synctest.
func newNode(t *testing.T) *node {
	t.Helper()
	began := time.Now()
	n := &node{t: t, accepts: true, info: watchdog.Info{Identity: "iTCO_wdt", MagicClose: true, SetTimeout: true}}
	n.options = Options{
		Path: "/dev/null", Timeout: time.Minute, FeedGap: time.Minute, BootID: "b", StateFile: filepath.Join(t.TempDir(), "selffence"),
		Uptime: func() (time.Duration, error) { return 100*time.Second + time.Since(began), nil },
		Sysfs:  kernel.FS(kerneltest.Tree(t, map[string]string{"dev/char/1:3/identity": "iTCO_wdt\n", "dev/char/1:3/nowayout": "0\n"})),
		Procfs: kernel.FS(t.TempDir()), Marks: n, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
		Open: func(string) (Device, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.openErr != nil {
				return nil, n.openErr
			}
			n.feed()
			return n, nil
		},
	}
	return n
}

// start starts evictd.
func (n *node) start() {
	n.driver = New(n.options)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.driver.Run(ctx) })
	n.end = func() { cancel(); running.Wait() }
	synctest.Wait()
}

// pass lets time pass.
func (n *node) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Set implements Marks: the API server's answer comes after 100 ms.
func (n *node) Set(m kube.NodeMarks) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := selffence.ParseAdvert(m.Watchdog)
	if err != nil {
		n.t.Errorf("advert %q: %v", m.Watchdog, err)
	}
	if !n.accepts {
		return
	}
	text := "withdrawn"
	if a.Armed {
		text = fmt.Sprintf("%s %ds gap %ds renew %ds", a.Identity, a.TimeoutSeconds, a.FeedGapSeconds, a.RenewSeconds)
		if ok, why := a.Proves(); !ok {
			n.t.Errorf("advert %q proves nothing: %s", m.Watchdog, why)
		}
	}
	if len(n.adverts) == 0 || n.adverts[len(n.adverts)-1] != text {
		n.adverts = append(n.adverts, text)
	}
	n.planned = m.PlannedShutdown
	driver := n.driver
	time.AfterFunc(100*time.Millisecond, func() { driver.Accepted(m.Number) })
}

func (n *node) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *node) feed() { n.deadline = time.Now().Add(n.timeout) }

func (n *node) Info() (watchdog.Info, error) { return n.info, nil }

func (n *node) Timeout() (time.Duration, error) { return n.timeout, nil }

func (n *node) SetTimeout(d time.Duration) (time.Duration, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timeout = d
	n.feed()
	return d, nil
}

func (n *node) Feed() error {
	n.mu.Lock()
	slow := n.slow
	n.slow = 0
	n.mu.Unlock()
	time.Sleep(slow)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.feed()
	return nil
}

func (n *node) Disarm() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deadline = time.Time{}
	return nil
}

func (n *node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.feed()
	return nil
}

// expect checks the adverts, and whether the watchdog is disarmed, runs or has fired.
func (n *node) expect(when, adverts, watchdog string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	state := "runs"
	switch {
	case n.deadline.IsZero():
		state = "disarmed"
	case time.Now().After(n.deadline):
		state = "fired"
	}
	if got := strings.Join(n.adverts, ", "); got != adverts || state != watchdog {
		n.t.Errorf("%s: adverts %q, the watchdog %s; want %q, %s\n%s", when, got, state, adverts, watchdog, n.log.String())
	}
}

const armedText = "iTCO_wdt 60s gap 60s renew 20s"

func TestArmFeedStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.expect("at the start", "withdrawn", "disarmed")
		n.pass(time.Second)
		n.expect("armed", "withdrawn, "+armedText, "runs")
		n.pass(time.Hour)
		n.expect("after an hour", "withdrawn, "+armedText, "runs")
		n.driver.Stop(t.Context())
		n.expect("stopped", "withdrawn, "+armedText+", withdrawn", "disarmed")
		n.end()
	})
}

// Without the API server it is fed for the feed gap and no longer. A stop then leaves it armed.
func TestNoAcceptance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.pass(time.Minute)
		n.set(func() { n.accepts = false })
		n.pass(50 * time.Second)
		n.expect("within the gap", "withdrawn, "+armedText, "runs")
		stopping, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		n.driver.Stop(stopping)
		n.expect("stopped", "withdrawn, "+armedText, "runs")
		n.pass(2 * time.Minute)
		n.expect("afterwards", "withdrawn, "+armedText, "fired")
		n.end()
		for _, want := range []string{"the watchdog is not fed any more", "the watchdog stays armed"} {
			if !strings.Contains(n.log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, n.log.String())
			}
		}
	})
}

// While a majority of nodes cannot reach the API server it is fed, and no longer. Without the setting counts mean
// nothing.
func TestPeers(t *testing.T) {
	for _, peers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.options.Peers = peers
			n.start()
			n.pass(time.Minute)
			because := func(when, want string) {
				t.Helper()
				if got := n.driver.Status(); got.FedBecause != want || got.Peers != peers {
					t.Errorf("%s, peers %t: status %+v; want fed because of %s", when, peers, got, want)
				}
			}
			because("at first", FedByAdvert)
			n.driver.CountPeers(selffence.Count{Nodes: 5, ListAge: time.Minute}) // the list of the adverts that follow
			n.pass(time.Minute)
			n.set(func() { n.accepts = false })
			n.pass(70 * time.Second)
			because("after the gap", FedByNothing)
			count := func(cannot int) {
				now, _ := n.options.Uptime()
				n.driver.CountPeers(selffence.Count{CannotReach: cannot, Nodes: 5, ListAge: time.Minute, At: now})
				n.pass(selffence.AskInterval)
			}
			for range 60 {
				count(3)
			}
			want, state := FedByPeers, "runs"
			if !peers {
				want, state = FedByNothing, "fired"
			}
			because("with a majority", want)
			n.expect("with a majority", "withdrawn, "+armedText, state)
			if peers {
				for range 60 {
					count(2)
				}
				because("without", FedByNothing)
				n.expect("without", "withdrawn, "+armedText, "fired")
			}
			n.set(func() { n.accepts = true })
			n.pass(time.Minute)
			because("accepted again", FedByAdvert)
			n.end()
			for line, want := range map[string]bool{
				"fed because a majority of all nodes cannot reach the API server": peers,
				"fed again because the API server has accepted an advert":         true,
				"the driver's timeout is too short for selfFencing.peers":         peers, // 60 s and a gap of 60 s
			} {
				if got := strings.Contains(n.log.String(), line); got != want {
					t.Errorf("peers %t: %q in the log: %t; want %t\n%s", peers, line, got, want, n.log.String())
				}
			}
		})
	}
}

// A crash leaves the watchdog armed. The next run goes on feeding, also without the API server, until the gap is over;
// without the saved state it waits for the API server.
func TestCrash(t *testing.T) {
	for _, test := range []struct {
		boot    string
		gap     time.Duration
		accepts bool
		want    string
	}{
		{"b", time.Minute, true, "runs"}, {"b", time.Minute, false, "fired"},
		{"c", time.Minute, true, "runs"}, {"c", time.Minute, false, "fired"},
		{"b", 2 * time.Minute, false, "fired"}, // the advert says less
	} {
		same := test.boot == "b" && test.gap == time.Minute
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.start()
			n.pass(time.Minute)
			n.end()
			n.set(func() { n.accepts = test.accepts })
			n.options.BootID, n.options.FeedGap = test.boot, test.gap
			var opened atomic.Bool
			open := n.options.Open
			n.options.Open = func(path string) (Device, error) { opened.Store(true); return open(path) }
			n.start()
			if opened.Load() != same {
				t.Errorf("%+v: opened at once: %t; want %t", test, opened.Load(), same)
			}
			n.pass(3 * time.Minute)
			n.expect(fmt.Sprint(test), n.sequence(!same && test.accepts), test.want)
			n.end()
		})
	}
}

// sequence returns the adverts of a run and, if the second one has prepared, of that.
func (n *node) sequence(prepared bool) string {
	if prepared {
		return "withdrawn, " + armedText + ", withdrawn, " + armedText
	}
	return "withdrawn, " + armedText
}

func TestFedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.pass(time.Minute)
		n.set(func() { n.accepts, n.slow = false, 90*time.Second })
		n.pass(2 * time.Minute)
		n.end()
		if n.timeout != selffence.LateTimeout {
			t.Errorf("timeout after a late feeding = %s; want %s", n.timeout, selffence.LateTimeout)
		}
	})
}

// A process that is stopped before it opens the device again feeds it late, too.
func TestOpenedLate(t *testing.T) {
	for _, test := range []struct {
		stopped time.Duration
		late    bool
	}{{0, false}, {65 * time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.start()
			n.pass(time.Minute)
			n.end()
			n.set(func() { n.accepts = false })
			open := n.options.Open
			n.options.Open = func(path string) (Device, error) {
				time.Sleep(test.stopped)
				return open(path)
			}
			n.start()
			n.pass(test.stopped + time.Second)
			n.end()
			if late := n.timeout == selffence.LateTimeout; late != test.late {
				t.Errorf("opened after %s: timeout %s; want %s: %t", test.stopped, n.timeout, selffence.LateTimeout, test.late)
			}
		})
	}
}

func TestDeviceCannotBeUsed(t *testing.T) {
	for _, test := range []struct {
		change func(*node)
		log    string
	}{
		{func(n *node) { n.openErr = fmt.Errorf("open: %w", watchdog.ErrBusy) }, "another process has the watchdog open"},
		{func(n *node) { n.openErr = errors.New("operation not permitted") }, "operation not permitted"},
		{func(n *node) { n.info.MagicClose = false }, "no magic close"},
		{func(n *node) { n.info.SetTimeout, n.timeout = false, time.Second }, "timeout of 1s is not between"},
		{func(n *node) { n.options.Path = "/does/not/exist" }, "no such file"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			test.change(n)
			n.start()
			n.pass(10 * time.Minute)
			n.expect(test.log, "withdrawn", "disarmed")
			if count := strings.Count(n.log.String(), test.log); count != 1 {
				t.Errorf("%d lines with %q; want 1:\n%s", count, test.log, n.log.String())
			}
			n.driver.Stop(t.Context())
			n.end()
		})
	}
}

// Off and in dry run nothing is opened, and the advert of an earlier run is withdrawn. Off, a shutdown is marked.
func TestOffAndDryRun(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			if n.options.DryRun = dryRun; !dryRun {
				n.options.Path = ""
			}
			n.options.Open = func(string) (Device, error) {
				t.Error("the device is opened")
				return nil, errors.New("opened")
			}
			n.start()
			n.pass(time.Minute)
			for _, until := range []time.Time{time.Now().Add(time.Minute), {}} {
				n.driver.PlanShutdown(until)
				n.pass(time.Second)
				n.set(func() {
					if marked := n.planned != ""; marked != (!dryRun && !until.IsZero()) {
						t.Errorf("dry run %t: planned shutdown %q; want until %s", dryRun, n.planned, until)
					}
				})
			}
			n.expect(fmt.Sprint("dry run ", dryRun), "withdrawn", "disarmed")
			n.driver.Stop(t.Context())
			n.end()
			if said := strings.Contains(n.log.String(), "dry run: would arm"); said != dryRun {
				t.Errorf("log in dry run %t: %s", dryRun, n.log.String())
			}
		})
	}
}
