package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/evictions"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/proactive"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/self"
	selffencing "github.com/evictd/evictd/agent/selffence/driver"
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
		releaseLeft(o, log.Logger)
		return err
	}
	defer d.close()
	g := group{cancel: cancel}
	// The notifier outlives the other parts: it reports the end to the service manager.
	notifierCtx, stopNotifier := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNotifier()
	g.run("service manager", func() error { return d.notifier.Run(notifierCtx) })
	// Answers of evictd-kube are waited for at the end.
	kubeCtx, endKube := context.WithCancel(context.WithoutCancel(ctx))
	defer endKube()
	d.startKube(kubeCtx, &g)
	d.start(ctx, &g)
	<-ctx.Done()
	d.notifier.Stopping()
	stopNotifier()
	d.stopKube()
	endKube()
	d.stopped.Store(true)
	d.down.Store(d.shutdown.GoingDown())
	g.wait.Wait()
	if err := d.saveLast(); err != nil {
		log.Error("state not saved", "error", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("stopped")
	return nil
}

// loopTimeout is how long ago the loop's last iteration may be while /readyz says ready:
// about ten times its longest interval.
const loopTimeout = 10 * time.Second

// group runs the daemon's parts. The first that fails ends all of them.
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

// daemon has all parts of evictd.
type daemon struct {
	options        Options
	config         *config.Config // at the start
	log            *asyncLog
	store          *state.Store
	bootID         string
	hierarchy      *cgroup.Hierarchy
	self           *self.Process
	runtime        *cri.Client // nil if the configuration says that there is none
	inventory      *pods.Inventory
	disks          *disks.Watch
	usageMeter     *disks.UsageMeter
	diskUsage      *loop.DiskUsage
	reclaimer      *reclaim.Reclaimer
	tasks          *tasks.Watch
	oomScores      *oomscore.Enforcer
	proactive      *proactive.Reclaimer
	killer         *act.Killer
	execute        *execute.Executor
	poll           *lanes.Poll
	pollReader     *memory.Memory
	thresholds     memory.SharedThresholds
	lanes          *lanes.Set
	samplerReader  *memory.SamplerReader
	asyncReaders   []*memory.AsyncReader // of the hot path and the watchdog
	lockMemory     func(context.Context)
	hot            *hot.Thread
	watchdog       *hot.Watchdog
	reaper         *act.Reaper
	arbiter        *hot.Arbiter
	liveness       *loop.Liveness
	loop           *loop.Loop
	lastView       *atomic.Pointer[loop.View]
	records        *execute.Records
	statusBackend  *status.Backend
	heartbeat      metrics.Heartbeat // of the loop
	reloadRequests chan chan<- error // of the control socket
	startWarnings  []string
	rootProblem    string            // why nodefs would not be the host's; "" if it is
	lastBoot       shutdown.LastBoot // how the last boot ended
	metrics        *metrics.Metrics
	notifier       *systemd.Notifier
	stateWriter    *state.Writer
	delayLock      *logind.DelayLock
	shutdown       *driver.Driver
	control        net.Listener
	// These are nil if no evictd-kube is configured.
	facts     *kube.Facts
	orders    *kube.Orders
	node      *kube.Node
	marks     *kube.Marks
	evictions *evictions.Evictions
	// selfFencing feeds the watchdog and marks planned shutdowns.
	selfFencing *selffencing.Driver

	web     *metrics.Server // nil if metrics are not served
	closers []func() error
	// For the next run: whether this one was asked to end, and whether the node was
	// shutting down then.
	stopped, down atomic.Bool
	saveMutex     sync.Mutex
}

// close closes all parts, the last one first.
func (d *daemon) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		if err := d.closers[i](); err != nil {
			d.log.Debug("close", "error", err)
		}
	}
}

// build makes and connects all parts, and starts none of them.
func build(o Options, log *asyncLog) (_ *daemon, err error) {
	d := &daemon{
		options: o, log: log, liveness: &loop.Liveness{}, lastView: &atomic.Pointer[loop.View]{}, records: &execute.Records{},
		stateWriter: state.NewWriter(), reloadRequests: make(chan chan<- error),
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
	// Before the configuration, which is an error if it has the removed field.
	d.self.WarnMemoryHigh(o.StateDir, d.bootID)
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
	d.buildFacts(cfg)
	d.metrics = metrics.New(metricsBuild(), log.dropped)
	if err := d.buildObservers(cfg, hierarchy); err != nil {
		return nil, err
	}
	d.oomScores, d.proactive = d.buildScores(hierarchy), d.buildProactiveReclaim(hierarchy)
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
	if warning := self.RootProblem(kernel.FS(o.Procfs), o.Rootfs, d.disks.NodePath()); warning != "" {
		log.Error("the host's root is not mounted", "error", warning)
		d.rootProblem = warning
	}
	d.buildExecute()
	d.buildEvictions()
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
		return fmt.Errorf("%w (--control-socket sets another path)", err)
	}
	d.closers = append(d.closers, ignoreClosed(d.control.Close))
	if d.options.WebAddress == "" {
		return nil
	}
	if d.web, err = metrics.NewServer(context.Background(), d.options.WebAddress); err != nil {
		return fmt.Errorf("%w (--web.listen-address)", err)
	}
	return nil
}

// ignoreClosed ignores the error of a second Close: the server closes its listener, too.
func ignoreClosed(f func() error) func() error {
	return func() error {
		if err := f(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// buildExecute makes the actuators and their executor.
func (d *daemon) buildExecute() {
	procfs := kernel.FS(d.options.Procfs)
	var stopper act.Runtime
	if d.runtime != nil {
		stopper = act.CountFailures(d.runtime, d.metrics.RuntimeCallFailed)
	}
	d.execute = execute.New(execute.Options{
		Killer: func(report func(act.Progress)) act.Actuator {
			d.killer = act.NewKiller(d.hierarchy, procfs, stopper, report)
			return d.killer
		},
		DryRun:  func(report func(act.Progress)) act.Actuator { return act.NewDryRun(d.hierarchy, procfs, report) },
		Records: d.records, Log: d.log.Logger, Metrics: d.metrics, Save: d.stateWriter.Request,
	})
	if thread, err := act.NewPriorityThread(); err != nil {
		d.log.Warn("no real-time thread for pods with many processes; they are signalled at normal priority", "error", err)
	} else {
		thread.OnStart, d.killer.PriorityThread = d.self.SetRealTime, thread
	}
}

// buildStatus makes the status, as the control socket and /readyz show it.
func (d *daemon) buildStatus() {
	o := d.options
	options := status.Options{
		Procfs: o.Procfs, Cgroupfs: o.Cgroupfs, StateDir: o.StateDir, Hierarchy: d.hierarchy, View: d.lastView.Load,
		Inventory: d.inventory, Disks: d.disks, UsageMeter: d.usageMeter, Reclaimer: d.reclaimer, Records: d.records, Store: d.store,
		Lanes: d.lanes, Shutdown: d.shutdown, DelayLock: d.delayLock, WebWarning: d.web.Warning, Accounting: d.config.MemoryAccounting,
		LastShutdown: d.lastBoot, Warnings: d.startWarnings, Reload: d.requestReload,
		Facts: d.facts,
	}
	if d.facts != nil {
		options.Orders, options.NodeObject, options.Fences = d.orders.Status, d.node.Status, func() status.FenceStatus { return status.FenceStatus(d.evictions.Status()) }
	}
	if d.selfFencing != nil {
		options.SelfFencing = d.selfFencing.Status
	}
	d.statusBackend = status.New(options)
	if d.selfFencing != nil {
		d.metrics.SelfFencing(d.statusBackend.SelfFencingMetrics)
	}
	if d.facts != nil {
		d.metrics.Kubernetes(d.statusBackend.KubernetesMetrics)
	}
}

// buildLoop makes the decision loop, with the decision's state of an earlier run.
func (d *daemon) buildLoop(decision *evict.State) error {
	procfs := kernel.FS(d.options.Procfs)
	options := d.memoryOptions(d.config, d.hierarchy)
	read, err := memory.Open(options)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, read.Close)
	killer, dryRunKiller := d.fastKillers()
	d.loop = loop.New(loop.Options{
		Log: d.log.Logger, Config: d.config, State: *decision,
		Memory: read, Inventory: d.inventory, Disks: d.disks, Tasks: d.tasks, DiskUsage: d.diskUsage, Reclaimer: d.reclaimer,
		LargestDirectories: func(s signal.Signal) []evict.DirectoryUsage {
			return status.LargestDirectories(d.disks, d.usageMeter, s)
		},
		Lanes: d.lanes, ModeFacts: d.modeFacts(d.hierarchy), KubeletThresholds: d.facts.KubeletThresholds, OnLayoutChange: d.setDiskThresholds, Procfs: procfs, Hierarchy: d.hierarchy, Drift: options.Drift,
		Hot: d.hot, Arbiter: d.arbiter, Watchdog: d.watchdog, Liveness: d.liveness, Killer: killer, DryRunKiller: dryRunKiller,
		OpenHandle: func(j act.Job) (*act.KillHandle, error) { return act.Prepare(d.hierarchy, procfs, j) },
		Execute:    d.execute, Arrivals: d.facts.Arrivals, Refuse: d.evictions.Refuse, Ordered: d.orders.Has,
		Observer: status.NewObserver(status.ObserverOptions{
			Log: d.log.Logger, Metrics: d.metrics, Notifier: d.notifier, Beat: &d.heartbeat, View: d.lastView, Backend: d.statusBackend,
			Changed: d.viewChanged, Listed: d.followContainers, Waiting: d.proactive.Notify, RequestSave: d.stateWriter.Request,
		}),
	})
	d.closers = append(d.closers, d.loop.Close)
	return nil
}

// start starts all parts.
func (d *daemon) start(ctx context.Context, g *group) {
	d.self.Protect()
	policy := d.setThresholds(d.config)
	d.metrics.ConfigLoaded(time.Now())
	o := d.options
	for _, f := range probe.Run(kernel.FS(o.Procfs), kernel.FS(o.Sysfs), kernel.FS(o.Cgroupfs)) {
		if f.Supported != probe.Unknown {
			d.metrics.Probed(f.Name, f.Supported == probe.Yes)
		}
	}
	d.log.Info("starting", "version", version.Of().String(), "cgroups", d.hierarchy.Version.String(),
		"thresholds", status.DescribeThresholds(policy))

	g.run("inventory", func() error { return d.inventory.Run(ctx) })
	g.run("kubelets", func() error { return d.inventory.WatchKubelets(ctx, self.ResetNice) })
	g.run("filesystems", func() error { return d.disks.Run(ctx) })
	g.run("disk usage", func() error { return d.usageMeter.Run(ctx) })
	g.run("reclaim", func() error { return d.reclaimer.Run(ctx) })
	g.run("proactive reclaim", func() error { return d.proactive.Run(ctx) })
	g.run("OOM scores", func() error { return d.oomScores.Run(ctx) })
	g.run("tasks", func() error { return d.tasks.Run(ctx) })
	d.startHot(ctx, g)
	d.startLanes(ctx, g)
	g.run("memory", func() error { d.lockMemory(ctx); return nil })
	g.run("control socket", func() error { return control.New(d.statusBackend, d.log.Logger).Serve(ctx, d.control) })
	if d.web != nil {
		g.run("web server", func() error { d.web.Run(ctx, d.webOptions()); return nil })
	}
	g.run("state", func() error { d.stateWriter.Run(ctx, d.save, d.saveCopy, d.log.Logger); return nil })
	g.run("reload", func() error { d.reload(ctx); return nil })
	g.run("logind", func() error { return d.delayLock.Run(ctx) })
	g.run("shutdown", func() error { d.shutdown.Run(ctx); return nil })
	g.run("loop", func() error {
		d.loop.Run(ctx)
		<-d.shutdown.Done() // it uses the killer, too
		d.killer.Wait()
		return nil
	})
}

func (d *daemon) webOptions() metrics.Options {
	return metrics.Options{
		Handler:       metrics.Mux(d.metrics.Handler(d.log.Logger), &d.heartbeat, loopTimeout, d.statusBackend.Checks()...),
		ConfigFile:    d.options.WebConfigFile,
		PrepareThread: self.ResetNice,
		Log:           d.log.Logger,
	}
}

// setThresholds gives the thresholds of a configuration to all that watch them, and returns
// the policy.
func (d *daemon) setThresholds(cfg *config.Config) *evict.Policy {
	policy := cfg.Policy(d.disks.Layout())
	thresholds := thresholdsOf(policy)
	d.thresholds.Set(thresholds)
	d.poll.Arm(thresholds)
	d.lanes.Arm(thresholds)
	d.setDiskThresholds(policy)
	return policy
}
