package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/cold"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/agent/status"
	"github.com/evictd/evictd/agent/systemd"
	"github.com/evictd/evictd/agent/tasks"
	"github.com/evictd/evictd/agent/version"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/cpu"
	"github.com/evictd/evictd/kernel/probe"
	"github.com/evictd/evictd/kernel/process"
)

// Run is the daemon: it returns nil when ctx ends, and an error when it can't
// start or one of its parts has failed.
func Run(ctx context.Context, o Options) error {
	self.TuneRuntime()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	log, flush := startLog(o)
	defer flush()
	d, err := build(o, log)
	if err != nil {
		return err
	}
	defer d.close()
	g := group{cancel: cancel}
	// The service manager hears of the end, so it is told longer than the rest
	// runs.
	telling, told := context.WithCancel(context.WithoutCancel(ctx))
	defer told()
	g.run("service manager", func() error { return d.notifier.Run(telling) })
	d.start(ctx, &g)
	<-ctx.Done()
	d.notifier.Stopping()
	told()
	d.stopped.Store(true)
	d.down.Store(d.shutdown.GoingDown())
	g.wait.Wait()
	if err := d.save(); err != nil {
		log.Error("state not saved", "error", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("stopped")
	return nil
}

// startLog begins to log; flush writes out what is left.
func startLog(o Options) (log *droppingLog, flush func()) {
	sink := systemd.NewLog(o.Stderr, systemd.Format{
		JSON: o.LogFormat == "json", Level: o.LogLevel, Journal: systemd.ToJournal(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sink.Run(ctx) // the sink is where an error of it would be told
	}()
	return &droppingLog{Logger: slog.New(sink.Handler()), dropped: sink.Dropped}, func() {
		cancel()
		<-done
	}
}

// droppingLog is a logger that never waits, and tells how many lines that cost.
type droppingLog struct {
	*slog.Logger
	dropped func() uint64
}

// slowestTurn is how long the loop may be silent and still count as healthy.
const slowestTurn = 10 * time.Second

// group runs the daemon's parts; the first that fails ends all.
type group struct {
	wait   sync.WaitGroup
	cancel context.CancelCauseFunc
}

func (g *group) run(name string, f func() error) {
	g.wait.Go(func() {
		if err := f(); err != nil {
			g.cancel(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// daemon is all that runs.
type daemon struct {
	options   Options
	config    *config.Config // at the start
	log       *droppingLog
	store     *state.Store
	bootID    string
	hierarchy *cgroup.Hierarchy
	self      *self.Process
	runtime   *cri.Client // nil where it is declared absent
	inventory *pods.Inventory
	disks     *disks.Watch
	usages    *disks.Usages
	diskUsage *loop.DiskUsage
	reclaimer *reclaim.Reclaimer
	tasks     *tasks.Watch
	scores    *oomscore.Enforcer
	cold      *cold.Reclaimer
	killer    *act.Killer
	execute   *execute.Executor
	poll      *lanes.Poll
	pollRead  *memory.Memory
	armed     memory.Armed
	lanes     *lanes.Set
	quick     *memory.Quick
	apart     []*memory.Apart // of the hot path and of the watchdog
	lock      func(context.Context)
	hot       *hot.Thread
	watchdog  *hot.Watchdog
	reaper    *act.Reaper
	desk      *hot.Desk
	liveness  *loop.Liveness
	loop      *loop.Loop
	view      *atomic.Pointer[loop.View] // the loop's last
	records   *execute.Records
	board     *status.Board
	beat      metrics.Heartbeat // of the loop
	reloads   chan chan<- error // what an operator asks for
	warnings  []string          // of the start
	last      shutdown.Last     // what became of the boot before
	metrics   *metrics.Metrics
	notifier  *systemd.Notifier
	keeper    *keeper
	guard     *logind.Guard
	shutdown  *driver.Driver
	control   net.Listener
	web       *webServer // nil where metrics are not to be served
	closers   []func() error
	// For the next run: that this one was asked to end, and that the node was on
	// its way down then.
	stopped, down atomic.Bool
	saving        sync.Mutex
}

func (d *daemon) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		if err := d.closers[i](); err != nil {
			d.log.Debug("close", "error", err)
		}
	}
}

// build opens and connects everything, and starts nothing.
func build(o Options, log *droppingLog) (_ *daemon, err error) {
	d := &daemon{
		options: o, log: log, liveness: &loop.Liveness{}, view: &atomic.Pointer[loop.View]{}, records: &execute.Records{},
		keeper: &keeper{wake: make(chan struct{}, 1)}, reloads: make(chan chan<- error),
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := d.openState(); err != nil {
		return nil, err
	}
	hierarchy, err := cgroup.Find(kernel.FS(o.Cgroupfs))
	if err != nil {
		return nil, err
	}
	d.hierarchy = hierarchy
	d.self = self.New(kernel.FS(o.Procfs), hierarchy, log.Logger)
	if d.bootID, err = process.BootID(kernel.FS(o.Procfs)); err != nil {
		return nil, err
	}
	// Before the configuration, which ends the start where it names the removed field.
	warnLoweredHigh(o.StateDir, d.bootID, hierarchy, log.Logger)
	cfg, err := config.Load(config.Options{Path: o.ConfigPath, PathGiven: o.ConfigGiven, KubeletPath: o.KubeletConfigPath, DryRun: o.DryRun})
	if err != nil {
		return nil, &configError{err}
	}
	for _, n := range cfg.Notices {
		log.Warn("configuration", "notice", n.String())
	}
	d.config = cfg
	if d.notifier, err = systemd.NewNotifier(); err != nil {
		return nil, err
	}
	if err := d.listen(); err != nil {
		return nil, err
	}
	d.metrics = metrics.New(metricsBuild(), log.dropped)
	if err := d.buildObservers(cfg, hierarchy); err != nil {
		return nil, err
	}
	d.scores, d.cold = d.buildScores(hierarchy), d.buildCold(hierarchy)
	d.buildDisks(cfg)
	d.buildReclaimer(cfg)
	if err := d.buildTasks(cfg, hierarchy); err != nil {
		return nil, err
	}
	if err := d.buildLanes(cfg, hierarchy); err != nil {
		return nil, err
	}
	saved, err := d.load()
	if err != nil {
		return nil, err
	}
	if warning := self.ForeignRoot(kernel.FS(o.Procfs), o.Rootfs); warning != "" {
		log.Error("the host's root is not mounted", "error", warning)
		d.warnings = append(d.warnings, warning)
	}
	d.buildExecute()
	d.buildShutdown()
	d.restore(&saved)
	d.buildStatus()
	return d, d.buildLoop(&saved.Decision)
}

func metricsBuild() metrics.Build {
	b := version.Of()
	return metrics.Build{Version: b.Version, Revision: b.Revision, GoVersion: b.Go}
}

func (d *daemon) listen() (err error) {
	if err := metrics.CheckWebConfig(d.options.WebConfigFile); err != nil {
		return &configError{err}
	}
	if d.control, err = control.Listen(d.options.ControlSocket); err != nil {
		return fmt.Errorf("%w (--control-socket names another place)", err)
	}
	d.closers = append(d.closers, ignoreClosed(d.control.Close))
	if d.options.WebAddress == "" {
		return nil
	}
	if err := checkWebAddress(context.Background(), d.options.WebAddress); err != nil {
		return err
	}
	d.web = d.newWebServer()
	return nil
}

// ignoreClosed makes a second Close no error: whoever serves on a listener
// closes it.
func ignoreClosed(f func() error) func() error {
	return func() error {
		if err := f(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// buildObservers connects what is observed: the runtime's pods and the node's
// memory.
func (d *daemon) buildObservers(cfg *config.Config, h *cgroup.Hierarchy) error {
	o := d.options
	procfs := kernel.FS(o.Procfs)
	inventory := pods.Options{
		Hierarchy: h, Procfs: procfs, CgroupRoot: cfg.CgroupRoot,
		TrustAnnotations: cfg.TrustAnnotations, KubeletAbsent: cfg.Kubelet == config.KubeletAbsent, Log: d.log.Logger,
	}
	if cfg.RuntimeEndpoint != config.RuntimeNone {
		endpoint, err := endpointOf(cfg.RuntimeEndpoint, o.Rootfs)
		if err != nil {
			return err
		}
		if d.runtime, err = cri.Connect(endpoint); err != nil {
			return err
		}
		d.closers = append(d.closers, d.runtime.Close)
		inventory.Runtime = countedLists{pods.NewCRI(d.runtime, endpoint), d.metrics.RuntimeCallFailed}
	}
	d.quick = memory.NewQuick(nil)
	inventory.Tree = d.quick.Tree()
	d.inventory = pods.New(inventory)
	d.closers = append(d.closers, d.inventory.Close)

	options := d.memoryOptions(cfg, h)
	cpus, err := cpu.Online(kernel.FS(o.Sysfs))
	if err != nil {
		cpus = runtime.NumCPU() // a first guess of how fast memory may fill
	}
	if d.pollRead, err = memory.Open(options); err != nil {
		return err
	}
	d.closers = append(d.closers, d.pollRead.Close)
	d.poll = lanes.NewPoll(func(now time.Time, into *signal.Observations) {
		d.pollRead.Read(now, into)
		d.lanes.Seen(now, into)
	}, cpus, options.Drift)
	return d.buildHot(options)
}

// buildExecute makes the actuators and what gives orders to them.
func (d *daemon) buildExecute() {
	procfs := kernel.FS(d.options.Procfs)
	var stopper act.Runtime
	if d.runtime != nil {
		stopper = countedRuntime{d.runtime, d.metrics.RuntimeCallFailed}
	}
	d.execute = execute.New(execute.Options{
		Killer: func(report func(act.Progress)) act.Actuator {
			d.killer = act.NewKiller(d.hierarchy, procfs, stopper, report)
			return d.killer
		},
		DryRun:  func(report func(act.Progress)) act.Actuator { return act.NewDryRun(d.hierarchy, procfs, report) },
		Records: d.records, Log: d.log.Logger, Metrics: d.metrics, Save: d.keeper.poke,
	})
	if urgent, err := act.NewUrgent(); err != nil {
		d.log.Warn("victims of many processes are signalled at evictd's own priority", "error", err)
	} else {
		urgent.Started, d.killer.Urgent = d.self.GiveRealTime, urgent
	}
}

// buildStatus makes what others see of the daemon.
func (d *daemon) buildStatus() {
	o := d.options
	d.board = status.New(status.Options{
		Procfs: o.Procfs, Cgroupfs: o.Cgroupfs, StateDir: o.StateDir, Hierarchy: d.hierarchy, View: d.view.Load,
		Inventory: d.inventory, Disks: d.disks, Usages: d.usages, Reclaimer: d.reclaimer, Records: d.records, Store: d.store,
		Lanes: d.lanes, Shutdown: d.shutdown, Guard: d.guard, WebWarning: d.web.warning, Accounting: d.config.MemoryAccounting,
		Last: d.last, Warnings: d.warnings, Reload: d.requestReload,
	})
}

// buildLoop makes the decision loop, which goes on with what an earlier run decided.
func (d *daemon) buildLoop(decision *evict.State) error {
	procfs := kernel.FS(d.options.Procfs)
	options := d.memoryOptions(d.config, d.hierarchy)
	read, err := memory.Open(options)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, read.Close)
	kill, look := d.strikers()
	d.loop = loop.New(loop.Options{
		Log: d.log.Logger, Config: d.config, State: *decision,
		Memory: read, Inventory: d.inventory, Disks: d.disks, Tasks: d.tasks, DiskUsage: d.diskUsage, Reclaimer: d.reclaimer,
		Largest: func(s signal.Signal) []evict.DirectoryUsage { return status.Largest(d.disks, d.usages, s) },
		Lanes:   d.lanes, Facts: d.facts(d.hierarchy), Rearm: d.armDisks, Procfs: procfs, Hierarchy: d.hierarchy, Drift: options.Drift,
		Hot: d.hot, Desk: d.desk, Watchdog: d.watchdog, Liveness: d.liveness, Strike: kill, Look: look,
		Prepare: func(j act.Job) (*act.Hold, error) { return act.Prepare(d.hierarchy, procfs, j) },
		Execute: d.execute,
		Observer: status.NewObserver(status.ObserverOptions{
			Log: d.log.Logger, Metrics: d.metrics, Notifier: d.notifier, Beat: &d.beat, View: d.view, Board: d.board,
			Changed: d.shutdown.Changed, Listed: d.watchContainers, Waiting: d.cold.Poke, RequestSave: d.keeper.poke,
		}),
	})
	d.closers = append(d.closers, d.loop.Close)
	return nil
}

// start sets everything going.
func (d *daemon) start(ctx context.Context, g *group) {
	d.self.Protect()
	policy := d.arm(d.config)
	d.metrics.ConfigLoaded(time.Now())
	o := d.options
	for _, f := range probe.Run(kernel.FS(o.Procfs), kernel.FS(o.Sysfs), kernel.FS(o.Cgroupfs)) {
		if f.Supported != probe.Unknown {
			d.metrics.Probed(f.Name, f.Supported == probe.Yes)
		}
	}
	d.log.Info("starting", "version", version.Of().String(), "cgroups", d.hierarchy.Version.String(),
		"thresholds", describeThresholds(policy))

	g.run("inventory", func() error { return d.inventory.Run(ctx) })
	g.run("kubelets", func() error { return d.inventory.WatchKubelets(ctx, self.OrdinaryPriority) })
	g.run("filesystems", func() error { return d.disks.Run(ctx) })
	g.run("disk usage", func() error { return d.usages.Run(ctx) })
	g.run("reclaim", func() error { return d.reclaimer.Run(ctx) })
	g.run("cold memory", func() error { return d.cold.Run(ctx) })
	g.run("OOM scores", func() error { return d.scores.Run(ctx) })
	g.run("tasks", func() error { return d.tasks.Run(ctx) })
	d.startHot(ctx, g)
	d.startLanes(ctx, g)
	g.run("memory", func() error { d.lock(ctx); return nil })
	g.run("control socket", func() error { return control.New(d.board, d.log.Logger).Serve(ctx, d.control) })
	if d.web != nil {
		g.run("web server", func() error { return d.web.run(ctx) })
	}
	g.run("state", func() error { d.keeper.run(ctx, d.save, d.log.Logger); return nil })
	g.run("reload", func() error { d.reload(ctx); return nil })
	g.run("logind", func() error { return d.guard.Run(ctx) })
	g.run("shutdown", func() error { d.shutdown.Run(ctx); return nil })
	g.run("loop", func() error {
		d.loop.Run(ctx)
		<-d.shutdown.Ended() // who orders, too
		d.killer.Wait()
		return nil
	})
}

// arm tells everyone which thresholds are in force, and returns the policy of that.
func (d *daemon) arm(cfg *config.Config) *evict.Policy {
	policy := cfg.Policy(d.disks.Layout())
	armed := marks(policy)
	d.armed.Set(armed)
	d.poll.Arm(armed)
	d.lanes.Arm(armed)
	d.armDisks(policy)
	return policy
}

// endpointOf returns the runtime's socket: the configured one, else the first
// of the usual ones that is there, else the most usual, which may appear.
func endpointOf(configured, rootfs string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	candidates := cri.DefaultEndpoints()
	for _, endpoint := range candidates {
		path, err := cri.SocketPath(endpoint)
		if err != nil {
			return "", err
		}
		if rootfs != "/" {
			path = rootfs + path
		}
		if _, err := os.Stat(path); err == nil {
			return "unix://" + path, nil
		}
	}
	return candidates[0], nil
}
