package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/watchdog"
)

// Device is an open watchdog. *watchdog.Device implements it.
type Device interface {
	Info() (watchdog.Info, error)
	Timeout() (time.Duration, error)
	SetTimeout(time.Duration) (time.Duration, error)
	Feed() error
	Disarm() error
	Close() error
}

// Marks takes the marks of the Node object. *kube.Marks implements it.
type Marks interface {
	Set(kube.NodeMarks)
}

// Options configure a Driver.
type Options struct {
	// Path is the watchdog device; "" if self-fencing is off.
	Path string
	// Timeout is what the watchdog is asked for. FeedGap is for how long it is fed after an accepted advert.
	Timeout, FeedGap time.Duration
	// Peers is set if it is also fed while a majority of nodes cannot reach the API server.
	Peers bool
	// DryRun opens no device and says what would be done.
	DryRun bool
	BootID string
	// StateFile is a file that is lost at a reboot.
	StateFile string
	// Uptime is the clock: CLOCK_BOOTTIME.
	Uptime        func() (time.Duration, error)
	Open          func(path string) (Device, error)
	Procfs, Sysfs kernel.FS
	// OnFeedThread is called on the feeding thread when it starts.
	OnFeedThread func()
	Marks        Marks
	Log          *slog.Logger
}

// renewals is how many adverts are requested within FeedGap.
const renewals = 3

// Driver runs self-fencing. Without a device it withdraws the advert of an earlier run, and maintains the mark of a
// planned shutdown.
type Driver struct {
	options  Options
	settings selffence.Settings
	wake     chan struct{}
	done     chan struct{} // closed when nothing is armed any more

	mu        sync.Mutex
	accepted  uint64          // an advert that was accepted since the last step; 0 for none
	count     selffence.Count // the last of evictd-kube
	counted   bool            // count is new
	countedAt time.Duration   // when it came
	shown     shown           // for Status
	planned   time.Time       // until when a shutdown is planned; zero for none
	resend    bool            // planned has changed
	stop      bool

	// What follows belongs to Run.
	state   selffence.State
	inputs  selffence.Inputs
	opened  *opened // nil while the device is not open
	number  uint64  // of the newest marks
	advert  string  // of the newest marks
	failure string  // why the device could not be opened, as it was logged
	fedBy   string  // as it was logged

	feedUntil atomic.Int64 // for the feeding thread
	fedAt     atomic.Int64 // when the device was fed last
}

// opened is an open device.
type opened struct {
	Device
	identity string
	noWayOut bool
	timeout  time.Duration
	armedAt  time.Time
	stopFeed func() // ends the feeding thread and waits for it
}

// New returns a Driver. It opens nothing.
func New(o Options) *Driver {
	return &Driver{
		options: o, settings: selffence.Settings{FeedGap: o.FeedGap, Renew: o.FeedGap / renewals, Peers: o.Peers},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Accepted notes that the API server has accepted the marks with a number. It never blocks.
func (d *Driver) Accepted(number uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepted = number
	d.notify()
}

// CountPeers notes how many nodes cannot reach the API server. It never blocks.
func (d *Driver) CountPeers(c selffence.Count) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count, d.counted = c, true
	if now, err := d.options.Uptime(); err == nil {
		d.countedAt = now
	}
	if c.At != 0 {
		d.notify()
	}
}

// PlanShutdown sets until when the shutdown of the node is planned work; zero is for none. It never blocks.
func (d *Driver) PlanShutdown(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.options.DryRun || until.Equal(d.planned) {
		return
	}
	d.planned, d.resend = until, true
	d.notify()
}

func (d *Driver) notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Stop withdraws the advert, waits until the API server has accepted that or ctx ends, and disarms the watchdog. If ctx
// ends first, the watchdog stays armed, and the machine is reset unless evictd starts again in time. Run must be running.
func (d *Driver) Stop(ctx context.Context) {
	if !d.enabled() {
		return
	}
	d.mu.Lock()
	d.stop = true
	d.notify()
	d.mu.Unlock()
	select {
	case <-d.done:
	case <-ctx.Done():
	}
}

// enabled reports whether the device is to be opened.
func (d *Driver) enabled() bool { return d.options.Path != "" && !d.options.DryRun }

// Run runs self-fencing until ctx ends. A device that is not disarmed then is closed and stays armed.
func (d *Driver) Run(ctx context.Context) {
	now, err := d.options.Uptime()
	if err != nil { // evictd does not start without this clock
		d.options.Log.Error("self-fencing is off", "error", err)
		return
	}
	d.begin(now)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			d.abandon()
			return
		case <-d.wake:
		case <-timer.C:
		}
		if now, err = d.options.Uptime(); err != nil {
			continue
		}
		wait := d.step(now)
		if d.enabled() {
			timer.Reset(wait)
		}
	}
}

// begin restores the state, or without a device sends marks that withdraw the advert of an earlier run.
func (d *Driver) begin(now time.Duration) {
	if d.enabled() {
		d.state = selffence.Restore(d.load(), now)
		return
	}
	if d.options.Path != "" {
		d.describe()
	}
	close(d.done)
	d.request(uint64(max(1, now.Milliseconds())), false, 0)
}

// describe logs in dry run what would be armed.
func (d *Driver) describe() {
	a, err := watchdog.ReadAttributes(d.options.Sysfs, d.options.Path)
	if err != nil {
		d.options.Log.Warn("dry run: would not be able to arm the watchdog", "device", d.options.Path, "error", err)
		return
	}
	d.options.Log.Info("dry run: would arm the watchdog and reset the machine when the API server accepts no advert",
		"device", d.options.Path, "identity", a.Identity, "nowayout", a.NoWayOut,
		"timeout", d.options.Timeout.String(), "feed_gap", d.options.FeedGap.String())
}

// step does what is due now, and returns the time until the next step.
func (d *Driver) step(now time.Duration) (wait time.Duration) {
	d.mu.Lock()
	d.inputs.Accepted, d.inputs.Stop = d.accepted, d.stop
	if d.counted {
		d.inputs.PeersUntil = d.count.Until(now)
	}
	d.inputs.ListNodes = d.count.Nodes
	resend := d.resend
	d.accepted, d.resend, d.counted = 0, false, false
	d.mu.Unlock()
	if d.enabled() && d.state.Phase != selffence.Disarmed {
		if wait = d.decide(now); wait == 0 {
			return 0
		}
	} else {
		wait = time.Hour
	}
	if resend && d.number != 0 {
		d.send()
	}
	return wait
}

// decide makes one step of the decision and carries out its orders.
func (d *Driver) decide(now time.Duration) (wait time.Duration) {
	before := d.state.Phase
	var o selffence.Orders
	d.state, o = selffence.Step(d.state, d.settings, d.inputs, now)
	d.inputs = selffence.Inputs{}
	d.feedUntil.Store(int64(o.FeedUntil))
	d.save() // before it is done
	if before != d.state.Phase {
		d.options.Log.Info("self-fencing", "phase", string(d.state.Phase))
	}
	if d.state.Phase == selffence.Disarmed {
		if o.Disarm {
			d.disarm()
		}
		d.publish(0)
		close(d.done)
		return time.Hour
	}
	if o.Open {
		d.inputs.Opened = d.open()
		d.inputs.OpenFailed = !d.inputs.Opened
		return 0
	}
	if o.Request {
		d.request(o.Number, o.Armed, o.PeerNodes)
	}
	wait = o.Next - now
	if d.opened != nil {
		wait = min(wait, d.checkFeeding(o.FeedUntil, now))
	}
	d.publish(o.FeedUntil)
	return max(wait, time.Millisecond)
}

// checkFeeding logs when the feeding stops, when it goes on, and when its reason changes. It returns when to look
// again.
func (d *Driver) checkFeeding(until, now time.Duration) time.Duration {
	before := d.fedBy
	d.fedBy = fedBecause(&d.state, d.settings, until, now)
	if d.fedBy == before {
		return d.untilChange(until, now)
	}
	attributes := []any{"device", d.options.Path, "feed_gap", d.options.FeedGap.String()}
	switch {
	case d.fedBy == FedByNothing:
		d.options.Log.Error("the watchdog is not fed any more: the API server has accepted no advert; the machine will be reset",
			append(attributes, "within", d.opened.timeout.String())...)
	case d.fedBy == FedByPeers:
		d.mu.Lock()
		c := d.count
		d.mu.Unlock()
		d.options.Log.Warn("the watchdog is fed because a majority of all nodes cannot reach the API server", append(attributes,
			"cannot_reach", c.CannotReach, "nodes", c.Nodes, "at_most", (selffence.MaxListAge-c.ListAge).Round(time.Second).String())...)
	case before != "":
		d.options.Log.Info("the watchdog is fed again because the API server has accepted an advert", attributes...)
	}
	return d.untilChange(until, now)
}

// untilChange returns the time until the reason for feeding changes without an input.
func (d *Driver) untilChange(until, now time.Duration) time.Duration {
	switch gap := d.state.Accepted + d.settings.FeedGap; d.fedBy {
	case FedByAdvert:
		return gap - now
	case FedByPeers:
		return until - now
	}
	return time.Hour
}

// request sends marks with a new advert.
func (d *Driver) request(number uint64, armed bool, peerNodes int) {
	a := selffence.Advert{
		Version: selffence.Version, Armed: armed, BootID: d.options.BootID, Sequence: number, RenewedAt: time.Now(),
		Peers: d.enabled() && d.settings.Peers, PeerNodes: peerNodes,
		FeedGapSeconds: int(d.settings.FeedGap / time.Second), RenewSeconds: int((d.settings.Renew + time.Second - 1) / time.Second),
	}
	if d.enabled() { // also before it is open: a node without a timeout does not fence itself
		a.TimeoutSeconds = int(d.options.Timeout / time.Second)
	}
	if d.opened != nil {
		a.Identity, a.NoWayOut, a.ArmedAt = d.opened.identity, d.opened.noWayOut, d.opened.armedAt
		a.TimeoutSeconds = int(d.opened.timeout / time.Second)
	}
	d.number, d.advert = number, a.String()
	d.send()
}

// send sends the newest marks.
func (d *Driver) send() {
	d.mu.Lock()
	planned := d.planned
	d.mu.Unlock()
	m := kube.NodeMarks{Number: d.number, Watchdog: d.advert}
	if !planned.IsZero() {
		m.PlannedShutdown = selffence.FormatPlannedShutdown(planned)
	}
	d.options.Marks.Set(m)
}

// open opens the device and starts to feed it. A failure is logged once.
func (d *Driver) open() bool {
	o, err := d.tryOpen()
	if err != nil {
		if text := err.Error(); text != d.failure {
			d.failure = text
			d.options.Log.Error("the watchdog is not armed; this node does not fence itself; trying again each minute",
				"device", d.options.Path, "error", err)
		}
		return false
	}
	d.opened, d.failure = o, ""
	d.noteFed()
	d.shortenIfLate(o.Device)
	d.startFeeding()
	attributes := []any{"device", d.options.Path, "identity", o.identity, "timeout", o.timeout.String(),
		"feed_gap", d.options.FeedGap.String(), "nowayout", o.noWayOut}
	d.options.Log.Info("the watchdog is armed", attributes...)
	if d.settings.Peers && d.settings.FeedGap+2*o.timeout < selffence.MinPeerTimes {
		d.options.Log.Warn("the driver's timeout is too short for selfFencing.peers: in an outage of the API server the machine is reset before the other nodes say that they cannot reach it", attributes...)
	}
	if o.noWayOut {
		d.options.Log.Warn("the watchdog cannot be disarmed: the machine is reset if evictd is stopped for longer than the timeout", attributes...)
	}
	return true
}

// errNoMagicClose is returned for a device that any close disarms.
var errNoMagicClose = fmt.Errorf("the driver has no magic close: a crash of evictd would disarm the watchdog")

// tryOpen opens the device and sets its timeout.
func (d *Driver) tryOpen() (*opened, error) {
	attributes, err := watchdog.ReadAttributes(d.options.Sysfs, d.options.Path)
	if err != nil && !isUnavailable(err) {
		return nil, err
	}
	device, err := d.options.Open(d.options.Path)
	if err != nil {
		return nil, d.explainOpen(err)
	}
	o := &opened{Device: device, noWayOut: attributes.NoWayOut, armedAt: time.Now(), stopFeed: func() {}}
	if err := d.setUp(o); err != nil {
		if closeErr := device.Disarm(); closeErr != nil {
			device.Close()
			err = fmt.Errorf("%w; it stays armed: %w", err, closeErr)
		}
		return nil, err
	}
	return o, nil
}

// setUp reads what the device is and sets its timeout.
func (d *Driver) setUp(o *opened) error {
	info, err := o.Info()
	if err != nil {
		return err
	}
	o.identity = info.Identity
	if !info.MagicClose && !o.noWayOut {
		return errNoMagicClose
	}
	if info.SetTimeout {
		o.timeout, err = o.SetTimeout(d.options.Timeout)
	} else {
		o.timeout, err = o.Timeout()
	}
	if err != nil {
		return err
	}
	if o.timeout < selffence.MinTimeout || o.timeout > selffence.MaxTimeout {
		return fmt.Errorf("the driver's timeout of %s is not between %s and %s", o.timeout, selffence.MinTimeout, selffence.MaxTimeout)
	}
	return nil
}

// disarm disarms the device after the withdrawal of the advert was accepted.
func (d *Driver) disarm() {
	d.opened.stopFeed()
	if err := d.opened.Disarm(); err != nil {
		d.opened.Close()
		d.options.Log.Error("could not disarm the watchdog; the machine will be reset unless evictd starts again", "device", d.options.Path,
			"within", d.opened.timeout.String(), "error", err)
	} else if d.opened.noWayOut {
		d.options.Log.Warn("the watchdog cannot be disarmed (nowayout); the machine will be reset unless evictd starts again", "device", d.options.Path,
			"within", d.opened.timeout.String())
	} else {
		d.options.Log.Info("the watchdog is disarmed", "device", d.options.Path)
	}
	d.opened = nil
}

// abandon closes a device that is not disarmed.
func (d *Driver) abandon() {
	if d.opened == nil {
		return
	}
	d.opened.stopFeed()
	d.opened.Close()
	d.options.Log.Error("the watchdog stays armed: the API server has not accepted the withdrawal of the advert; the machine will be reset unless evictd starts again",
		"device", d.options.Path, "within", d.opened.timeout.String())
	d.opened = nil
}
