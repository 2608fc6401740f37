package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/fence/plan"
)

// configuration is what the ConfigMaps and Secrets of the controller's namespace say. It is parsed again when one of
// them changes.
type configuration struct {
	cached    client.Reader
	namespace string
	recorder  recorder
	metrics   *metrics
	agents    *fenceAgents
	jobs      bool // there is an image for Jobs
	log       *slog.Logger
	// changed is called after a change of the valid part.
	changed func(context.Context)

	mu       sync.Mutex
	loaded   bool
	config   plan.Config
	problems []plan.Problem
	shown    drills
}

// current returns the valid part of the configuration. loaded is false before it was read for the first time.
func (c *configuration) current() (config plan.Config, loaded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config, c.loaded
}

// all returns the valid part of the configuration, its mistakes, and what drills have shown.
func (c *configuration) all() (config plan.Config, problems []plan.Problem, shown drills, loaded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config, c.problems, c.shown, c.loaded
}

// drilled returns what drills have shown.
func (c *configuration) drilled() drills {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown
}

// Reconcile implements reconcile.Reconciler. The objects are read from the cache; a plan is pinned in its NodeFence.
func (c *configuration) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	maps, secrets := &corev1.ConfigMapList{}, &corev1.SecretList{}
	if err := c.cached.List(ctx, maps, client.InNamespace(c.namespace)); err != nil {
		return reconcile.Result{}, fmt.Errorf("list ConfigMaps of namespace %s: %w", c.namespace, err)
	}
	if err := c.cached.List(ctx, secrets, client.InNamespace(c.namespace)); err != nil {
		return reconcile.Result{}, fmt.Errorf("list Secrets of namespace %s: %w", c.namespace, err)
	}
	all, again := objects(maps.Items, secrets.Items), reconcile.Result{}
	if c.agents.describe(ctx, &all) {
		again.RequeueAfter = agentInterval
	}
	all.NoJobs = !c.jobs
	config, problems := plan.Parse(all)
	level := slog.LevelDebug
	c.mu.Lock()
	earlier, first := c.problems, !c.loaded
	if first || len(c.config.Plans) != len(config.Plans) || c.config.Policy != config.Policy {
		level = slog.LevelInfo
	}
	c.config, c.problems, c.loaded, c.shown = config, problems, true, drillsOf(maps.Items)
	c.mu.Unlock()
	if first || !slices.Equal(earlier, problems) {
		c.report(problems, earlier, maps.Items)
	}
	c.log.Log(ctx, level, "configuration of fencing read", "namespace", c.namespace, "planned_nodes", len(config.Plans),
		"problems", len(problems), "dry_run", !config.Policy.Enforce)
	c.changed(ctx)
	return again, nil
}

// report tells of problems that were not there before.
func (c *configuration) report(problems, earlier []plan.Problem, maps []corev1.ConfigMap) {
	mistakes := 0
	for _, p := range problems {
		if !p.Warning {
			mistakes++
		}
		if !slices.Contains(earlier, p) {
			c.log.Warn("configuration of fencing has a problem", "object", p.Object, "line", p.Line, "key", p.Key,
				"problem", p.Message, "remedy", p.Remedy, "object_is_used", p.Warning)
		}
	}
	if len(problems) == 0 && len(earlier) > 0 {
		c.log.Info("configuration of fencing has no problems any more")
	}
	for i := range maps {
		c.reportObject(&maps[i], problems, earlier)
	}
	c.metrics.configProblems.Set(float64(mistakes))
}

// reportObject writes one event about a ConfigMap that has a new problem, with all that it has. The API server counts
// events that differ in their note only as one.
func (c *configuration) reportObject(m *corev1.ConfigMap, problems, earlier []plan.Problem) {
	object, reason, changed := "ConfigMap "+m.Namespace+"/"+m.Name, "FenceConfigWarning", false
	var notes []string
	for _, p := range problems {
		if p.Object != object {
			continue
		}
		if !p.Warning {
			reason = "FenceConfigInvalid"
		}
		changed = changed || !slices.Contains(earlier, p)
		notes = append(notes, strings.TrimLeft(strings.TrimPrefix(p.String(), object), ": "))
	}
	if changed {
		c.recorder.event(m, true, reason, "ReadConfiguration", strings.Join(notes, "\n"))
	}
}

// objects returns ConfigMaps, and the keys of Secrets with what [stripSecret] has left of the values, as package plan
// reads them.
func objects(maps []corev1.ConfigMap, secrets []corev1.Secret) plan.Objects {
	var o plan.Objects
	for i := range maps {
		m := &maps[i]
		o.ConfigMaps = append(o.ConfigMaps, plan.Object{Namespace: m.Namespace, Name: m.Name, Data: m.Data})
	}
	for i := range secrets {
		s := &secrets[i]
		if !strings.HasPrefix(s.Name, "fence-") || !configures(s) {
			continue
		}
		keys := make(map[string]string, len(s.Data))
		for k := range s.Data {
			keys[k] = ""
		}
		o.Secrets = append(o.Secrets, plan.Object{Namespace: s.Namespace, Name: s.Name, Data: keys, Digests: s.StringData})
	}
	return o
}
