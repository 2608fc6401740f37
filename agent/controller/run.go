package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/version"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// leaseName is the name of the Lease of leader election.
	leaseName = "evictd-controller"
	// shutdownTimeout bounds the end of a controller that is asked to end.
	shutdownTimeout = 8 * time.Second
	// workers is the number of nodes that are looked at at the same time.
	workers = 4
	// The back-off of passes that fail.
	firstPassBackoff, longestPassBackoff = 200 * time.Millisecond, 15 * time.Second
)

// Options are what a controller needs.
type Options struct {
	// Kubeconfig is a file; empty: the service account of the pod.
	Kubeconfig string
	// Namespace has the configuration and the Lease of leader election.
	Namespace string
	// MetricsAddress is where the metrics are served; "0": nowhere.
	MetricsAddress string
	// ProbeAddress is where /healthz and /readyz are served; "0": nowhere.
	ProbeAddress string
	// LeaderElect is false if no other controller can run.
	LeaderElect bool
	// Election has the times of leader election.
	Election Election
	// Identity identifies the controller, such as the name of its pod.
	Identity string
	// NodeName is the node that the controller runs on, empty if it is none of the cluster. It is never fenced.
	NodeName string
	// KdumpAddress is where datagrams of dump kernels are received; empty or "0": nowhere.
	KdumpAddress string
	// WebhookAddress is where the API server and schedulers are served; empty or "0": nowhere.
	WebhookAddress string
	// WebhookCertDir has the certificate of that server; empty: the controller makes one.
	WebhookCertDir string
	// ExtenderClientCA is a file with the authorities of the certificates that schedulers must have; empty: they need none.
	ExtenderClientCA string
	// AgentsDirectory has the fence agents of ClusterLabs.
	AgentsDirectory string
	// ExecutorImage has evictd-controller and fence agents, which run in Jobs; empty: there are no Jobs.
	ExecutorImage string
	// Affinity says what is done about pods that violate their node affinity.
	Affinity affinity.Mode

	Log *slog.Logger
}

// Run fences dead nodes, and evicts pods that violate their node affinity, until ctx ends. It returns an error if it
// loses the leadership: the process must then end, so that nothing of it goes on.
func Run(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	klog.SetSlogLogger(slog.New(libraryHandler{o.Log.Handler(), ctx}))
	logger := klog.Background()
	ctrl.SetLogger(logger)
	config, err := restConfig(o.Kubeconfig)
	if err != nil {
		return err
	}
	o.Log.Info("starting", "version", version.Of().String(), "namespace", o.Namespace, "node", o.NodeName)
	if err := awaitPrerequisites(ctx, config, o); err != nil || ctx.Err() != nil {
		return err
	}
	suffix := make([]byte, 4)
	rand.Read(suffix)
	identity := o.Identity + "-" + hex.EncodeToString(suffix)
	lead := &leadership{times: o.Election, log: o.Log, lost: cancel, uptime: process.Uptime}
	m, err := newManager(config, o, lead, identity, logger)
	if err != nil {
		return err
	}
	devices, err := register(ctx, m, o, identity)
	if err != nil {
		return err
	}
	devices.stopTimeout = o.Election.stopTimeout()
	if lead.stop = devices.stop; o.LeaderElect {
		lead.holder = newLiveReader(m.GetAPIReader(), o.Namespace).leader
		devices.leads, devices.holds = lead.valid, lead.holds
	}
	if o.LeaderElect {
		o.Log.Info("waiting to become the leader", "lease", o.Namespace+"/"+leaseName, "identity", identity)
	}
	err = m.Start(ctx)
	// At the loss of leadership the manager does not wait. Agents that are not killed now go on without this process.
	devices.stop()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errNotRenewed), errors.Is(cause, errOtherLeader):
		return cause
	case err != nil:
		return fmt.Errorf("run controller: %w", err)
	}
	return nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("credentials for the API server: %w: set --kubeconfig, or run in a pod with a service account", err)
	}
	config.UserAgent = "evictd-controller/" + version.Of().Version
	return config, nil
}

// newScheme returns the types that the controller reads and writes.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, nodefence.AddToScheme(s)
}

func newManager(config *rest.Config, o *Options, lead *leadership, identity string, logger klog.Logger) (manager.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("types of the API: %w", err)
	}
	options := manager.Options{
		Scheme: scheme, Cache: cacheOptions(o), Logger: logger,
		Metrics:                metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress: o.ProbeAddress,
		LeaseDuration:          &o.Election.LeaseDuration, RenewDeadline: &o.Election.RenewDeadline, RetryPeriod: &o.Election.RetryPeriod,
		// All acts have ended by then: leadership.Update sees to it.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(shutdownTimeout),
	}
	if o.LeaderElect {
		lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, leaseName,
			resourcelock.ResourceLockConfig{Identity: identity}, config, o.Election.RenewDeadline)
		if err != nil {
			return nil, fmt.Errorf("lock of leader election: %w", err)
		}
		lead.Interface = lock
		options.LeaderElection, options.LeaderElectionResourceLockInterface = true, lead
	}
	m, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	// Both answer as soon as the prerequisites are met, also of a controller that is not the leader: a rollout waits
	// for it, and it is not restarted for it.
	return m, errors.Join(m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("prerequisites", healthz.Ping))
}

// register adds the controllers and the executor to the manager, and returns the executor. Acts and readings end with
// ctx.
func register(ctx context.Context, m manager.Manager, o *Options, identity string) (*executor, error) {
	live := newLiveReader(m.GetAPIReader(), o.Namespace)
	live.agents = newFenceAgents(o.AgentsDirectory)
	wake := make(chan event.TypedGenericEvent[string])
	notify := func(ctx context.Context, node string) {
		select {
		case wake <- event.TypedGenericEvent[string]{Object: node}:
		case <-ctx.Done():
		}
	}
	numbers := newMetrics(m.GetCache())
	if err := ctrlmetrics.Registry.Register(numbers); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	events := recorder{m.GetEventRecorder("evictd-controller")}
	settings := &configuration{
		cached: m.GetCache(), namespace: o.Namespace, recorder: events, metrics: numbers, log: o.Log, agents: live.agents, jobs: o.ExecutorImage != "",
		changed: func(ctx context.Context) { wakeSuspected(ctx, m.GetCache(), notify) },
	}
	devices := newExecutor(ctx, numbers, o.Log)
	devices.jobs = &jobs{
		live: live, cached: m.GetCache(), writer: m.GetClient(), namespace: o.Namespace, image: o.ExecutorImage, log: o.Log,
	}
	devices.open, devices.done = devices.openDevice(live), func(node string) { notify(devices.ctx, node) }
	kinds, err := newKindDiscovery(m.GetConfig())
	if err != nil {
		return nil, err
	}
	started := time.Now()
	r := &reconciler{
		cached: m.GetCache(), writer: m.GetClient(), config: settings, executor: devices, recorder: events, log: o.Log,
		observer: &observer{
			live: live, failed: &unreadable{log: o.Log}, leases: &leases{elapsed: func() time.Duration { return time.Since(started) }},
		},
		remediators: &remediatorLeases{live: live, writer: m.GetClient(), log: o.Log},
		objects:     &remediatorObjects{live: live, installed: kinds.installed},
		identity:    identity, ownNode: o.NodeName,
	}
	devices.check, devices.objects = r.checkAct, r.actOnObjects
	lister := &leaseLister{reconciler: r, own: newOwnNode(o, live), failed: &unreadable{log: o.Log}, notify: notify}
	listener := newKdumpListener(ctx, o, m.GetCache(), numbers.datagrams, func(node string) { notify(devices.ctx, node) })
	if listener != nil {
		r.kdump = listener
	}
	probing := &probes{config: settings, cached: m.GetCache(), executor: devices, recorder: events, log: o.Log}
	if err := ctrlmetrics.Registry.Register(probing); err != nil {
		return nil, fmt.Errorf("register metrics of probes: %w", err)
	}
	conditions := &nodeConditions{config: settings, probes: probing, cached: m.GetCache(), writer: m.GetClient(), log: o.Log}
	leading := manager.RunnableFunc(func(context.Context) error {
		o.Log.Info("watching nodes as the leader", "identity", identity)
		return nil
	})
	listening := manager.RunnableFunc(func(ctx context.Context) error {
		if listener != nil {
			listener.Run(ctx)
		}
		return nil
	})
	err = errors.Join(m.Add(leading), m.Add(devices), m.Add(lister), m.Add(devices.jobs), m.Add(listening), m.Add(probing), m.Add(conditions))
	if err != nil {
		return nil, fmt.Errorf("add to the manager: %w", err)
	}
	whole := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: "configuration"}}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{whole}
	})
	// No configuration is one, too: fences that have begun go on with the plan that they have.
	once := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(whole)
		return nil
	})
	err = ctrl.NewControllerManagedBy(m).Named("configuration").
		Watches(&corev1.ConfigMap{}, one).Watches(&corev1.Secret{}, one, builder.WithPredicates(predicate.NewPredicateFuncs(configures))).WatchesRawSource(once).Complete(settings)
	if err != nil {
		return nil, fmt.Errorf("watch configuration: %w", err)
	}
	err = ctrl.NewControllerManagedBy(m).Named("fence").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}).
		Watches(&nodefence.NodeFence{}, handler.EnqueueRequestsFromMapFunc(fencedNode)).
		WatchesRawSource(source.Channel(wake, handler.TypedEnqueueRequestsFromMapFunc(namedNode))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstPassBackoff, longestPassBackoff),
		}).Complete(r)
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return devices, errors.Join(registerAffinity(m, o, events), registerWebhook(ctx, m, o))
}

// configures reports whether a Secret is one of the configuration, and not one of a Job.
func configures(o client.Object) bool { return o.GetLabels()[labelName] != executorName }

func fencedNode(ctx context.Context, o client.Object) []reconcile.Request {
	f, ok := o.(*nodefence.NodeFence)
	if !ok || f.Node == "" {
		return nil
	}
	return namedNode(ctx, f.Node)
}

func namedNode(_ context.Context, name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

// wakeSuspected has the nodes looked at that are not Ready, after a change of the configuration.
func wakeSuspected(ctx context.Context, cached client.Reader, notify func(context.Context, string)) {
	nodes := &corev1.NodeList{}
	if err := cached.List(ctx, nodes); err != nil {
		return // the cache has not started; each node is looked at when it has
	}
	for i := range nodes.Items {
		if !ready(&nodes.Items[i]) {
			notify(ctx, nodes.Items[i].Name)
		}
	}
}
