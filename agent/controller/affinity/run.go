package affinity

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/affinity/settings"
)

// Mode says what is done about violations.
type Mode string

// The modes. Observe decides and reports, and sends nothing.
const (
	Off     Mode = "off"
	Observe Mode = "observe"
	Enforce Mode = "enforce"
)

// ParseMode returns the mode of a name.
func ParseMode(name string) (Mode, error) {
	if m := Mode(name); slices.Contains([]Mode{Off, Observe, Enforce}, m) {
		return m, nil
	}
	return "", fmt.Errorf("is observe, enforce or off, not %q", name)
}

// Annotation is the annotation of a pod with its requirement.
const Annotation = affinity.Annotation

// Event reports something about an object.
type Event func(about runtime.Object, warning bool, reason, action, note string)

// Options are what the execution half needs of the controller.
type Options struct {
	Mode Mode
	// Namespace has the ConfigMap.
	Namespace string
	Event     Event
	// Fenced returns the nodes with a fence that has not ended.
	Fenced func(context.Context) (map[string]bool, error)
	Log    *slog.Logger
}

// Runner is the execution half. It runs in the leader only. Its metrics are those that it collects.
type Runner struct {
	prometheus.Collector
	options Options
	cache   ctrlcache.Cache
	core    kubernetes.Interface
	metrics *metrics
	loop    *loop
	// configured says that the ConfigMap was read, or deleted.
	configured atomic.Bool
	// problems are those of the configuration that were reported.
	problems []string
}

// New returns the execution half. Of the manager's cache it uses Nodes, which must have what [KeepOfNode] keeps, and
// the ConfigMaps of the namespace.
func New(m manager.Manager, o Options) (*Runner, error) {
	config := rest.CopyConfig(m.GetConfig())
	// The rates of the decision and the constants of this package bound the requests. The request of an eviction must
	// not wait for the reads of others.
	config.QPS = -1
	direct, err := client.New(config, client.Options{Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(), HTTPClient: m.GetHTTPClient()})
	if err != nil {
		return nil, fmt.Errorf("client for affinity: %w", err)
	}
	core, err := kubernetes.NewForConfigAndClient(config, m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("client for evictions: %w", err)
	}
	numbers := newMetrics()
	return &Runner{Collector: numbers, options: o, cache: m.GetCache(), core: core, metrics: numbers, loop: newLoop(live{direct}, core, numbers, o)}, nil
}

// newLoop returns the loop. Its configuration is dry run.
func newLoop(l live, core kubernetes.Interface, numbers *metrics, o Options) *loop {
	out := &loop{
		workloads: newWorkloads(l, o.Log), metrics: numbers, event: o.Event, fenced: o.Fenced, log: o.Log,
		wake: make(chan struct{}, 1), invalid: make(map[types.UID]time.Time), setting: affinity.DefaultConfig(),
	}
	out.index = newIndex(out.notify)
	out.evictor = &evictor{live: l, workloads: out.workloads, rest: core.CoreV1().RESTClient(), config: out.config, fenced: o.Fenced}
	return out
}

// Start implements manager.Runnable. The manager calls it in the leader.
func (r *Runner) Start(ctx context.Context) error {
	nodes, err := r.handle(ctx, &corev1.Node{}, cache.ResourceEventHandlerFuncs{
		AddFunc: r.setNode, UpdateFunc: func(_, object any) { r.setNode(object) }, DeleteFunc: r.deleteNode,
	})
	if err != nil {
		return err
	}
	maps, err := r.handle(ctx, &corev1.ConfigMap{}, cache.ResourceEventHandlerFuncs{
		AddFunc: r.setConfig, UpdateFunc: func(_, object any) { r.setConfig(object) }, DeleteFunc: r.deleteConfig,
	})
	if err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), nodes, maps) {
		return nil
	}
	r.applyDefault()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { r.podReflector().RunWithContext(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case <-r.loop.index.synced:
	}
	r.options.Log.Info("watching pods for violations of their node affinity", "mode", r.options.Mode)
	r.loop.run(ctx)
	return nil
}

// handle adds a handler to an informer of the manager's cache.
func (r *Runner) handle(ctx context.Context, object client.Object, h cache.ResourceEventHandler) (synced cache.InformerSynced, err error) {
	informer, err := r.cache.GetInformer(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("watch %T for affinity: %w", object, err)
	}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("watch %T for affinity: %w", object, err)
	}
	return registration.HasSynced, nil
}

// podReflector returns the watch of all pods. They are in no other cache of the process.
func (r *Runner) podReflector() *cache.Reflector {
	pods := r.core.CoreV1().Pods(metav1.NamespaceAll)
	list := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, o) },
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(list, r.core), &corev1.Pod{}, r.loop.index,
		cache.ReflectorOptions{Name: "affinity", TypeDescription: "pods"})
}

func (r *Runner) setNode(object any) {
	if n, ok := object.(*corev1.Node); ok {
		r.loop.index.setNode(n)
	}
}

func (r *Runner) deleteNode(object any) {
	if n, ok := final(object).(*corev1.Node); ok {
		r.loop.index.deleteNode(n.Name)
	}
}

// final returns the object that was deleted.
func final(object any) any {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return object
}

func (r *Runner) setConfig(object any) {
	if m, ok := object.(*corev1.ConfigMap); ok && r.own(m) {
		data := m.Data
		if data == nil {
			data = map[string]string{}
		}
		r.apply(m, data)
	}
}

func (r *Runner) deleteConfig(object any) {
	if m, ok := final(object).(*corev1.ConfigMap); ok && r.own(m) {
		r.apply(m, nil)
	}
}

func (r *Runner) own(m *corev1.ConfigMap) bool {
	return m.Namespace == r.options.Namespace && m.Name == settings.Name
}

// apply applies the data of the ConfigMap, nil if there is none, and reports mistakes that were not there before.
func (r *Runner) apply(m *corev1.ConfigMap, data map[string]string) {
	config, problems := settings.Parse(data, r.options.Mode == Enforce)
	r.metrics.problems.Set(float64(len(problems)))
	if len(problems) > 0 && !slices.Equal(problems, r.problems) {
		text := strings.Join(problems, "\n")
		r.options.Log.Warn("configuration of affinity has mistakes; no pod is evicted until they are corrected",
			"object", "ConfigMap "+m.Namespace+"/"+m.Name, "problems", text)
		r.options.Event(m, true, "AffinityConfigInvalid", "ReadConfiguration", text+"\nNo pod is evicted until this is corrected.")
	}
	if len(problems) == 0 {
		r.options.Log.Info("configuration of affinity read", "dry_run", !config.Enforce, "debounce_seconds", config.Debounce.Seconds(),
			"per_minute", config.PerMinute, "storm_percentage", config.StormPercentage, "storm_confirmed", config.StormConfirmed)
	}
	r.problems = problems
	r.configured.Store(true)
	r.loop.setConfig(config)
}

// applyDefault applies the configuration of a namespace without ConfigMap. It is called when all were seen.
func (r *Runner) applyDefault() {
	if !r.configured.Load() {
		r.apply(nil, nil)
	}
}
