package plan

import (
	"errors"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

const (
	defaultHistoryTTL = 24 * time.Hour
	// shortGrace is the duration of a node's Lease: with a shorter grace, a few lost requests of a kubelet fence a
	// node.
	shortGrace = 40 * time.Second
	// renewInterval is the time in which a kubelet renews its Lease.
	renewInterval = 10 * time.Second
)

// policyField is a key of cluster-fence-config.
type policyField struct {
	field
	// set sets the value. Its error says what is right.
	set func(value string) error
}

// optional returns a function that sets a whole number with limits, which is nil if it is not set.
func optional(into **int32, least, most int32) func(string) error {
	return func(value string) error {
		n := new(int32)
		*into = n
		return properties.Number(n, least, most)(value)
	}
}

// policyFields returns the keys of cluster-fence-config, which set the policy.
func (p *parser) policyFields(c *fence.Policy, ttl *time.Duration) []policyField {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	t := &c.Timings
	scopes := map[string]fence.Scope{"statefulsets": fence.StatefulSets, "volumes": fence.Volumes, "all": fence.All}
	return []policyField{
		{field{name: "mode"}, properties.OneOf(&c.Enforce, map[string]bool{"enforce": true, "dry-run": false}, "write enforce or dry-run")},
		{field{name: "percentage", misspelt: []string{"precentage"}}, properties.Number(&c.Percentage, 0, 100)},
		{field{name: "max_unhealthy"}, optional(&c.MaxUnhealthy, 0, 10_000)},
		{field{name: "max_concurrent"}, properties.Number(&c.MaxConcurrent, 1, 100)},
		{field{name: "rate"}, properties.Duration(&c.Rate, 0, day)},
		{field{name: "burst"}, properties.Number(&c.Burst, 0, 100)},
		{field{name: "cooldown"}, properties.Duration(&c.Cooldown, 0, day)},
		{field{name: "applies_to"}, properties.OneOf(&c.AppliesTo, scopes, "write statefulsets, volumes or all")},
		{field{name: "grace"}, properties.Duration(&t.Grace.Duration, time.Second, day)},
		{field{name: "power_delay"}, properties.Duration(&t.PowerDelay.Duration, 0, day)},
		{field{name: "proof_timeout"}, properties.Duration(&t.ProofTimeout.Duration, time.Second, day)},
		{field{name: "proof_interval"}, properties.Duration(&t.ProofInterval.Duration, 5*time.Second, time.Hour)},
		{field{name: "settle"}, properties.Duration(&t.Settle.Duration, time.Second, day)},
		{field{name: "release_timeout"}, properties.Duration(&t.ReleaseTimeout.Duration, time.Second, day)},
		{field{name: "untaint_delay"}, properties.Duration(&t.UntaintDelay.Duration, time.Second, day)},
		{field{name: "return_timeout"}, properties.Duration(&t.ReturnTimeout.Duration, time.Second, day)},
		{field{name: "healthy_delay"}, properties.Duration(&t.HealthyDelay.Duration, 0, day)},
		{field{name: "total_timeout"}, properties.Duration(&t.TotalTimeout.Duration, time.Second, day)},
		{field{name: "backoff"}, properties.Duration(&t.Backoff.Duration, time.Second, day)},
		{field{name: "giveup_retries"}, properties.Number(&t.Retries, 0, 100)},
		{field{name: "history_ttl"}, properties.Duration(ttl, 0, year)},
		{field{name: "kdump_max_wait"}, properties.Duration(&t.KdumpMaxWait.Duration, 0, time.Hour)},
		{field{name: "storage"}, refuseStorage},
		{field{name: "executor"}, properties.OneOf(&p.executor, executors, executorRemedy)},
		{field{name: "allow_plain_secrets"}, func(value string) (err error) {
			p.allowPlain, err = properties.ParseSwitch(value)
			return err
		}},
	}
}

// refuseStorage refuses the storage policies of the proposal for node fencing, and says why there are none.
func refuseStorage(value string) error {
	switch value {
	case "lost":
		return errors.New("remove the line: nothing that evictd-controller can read proves that a node has lost its storage; " +
			"to release pods whose storage a node is cut off from, use a method of isolation with releases")
	case "alive":
		return errors.New("remove the line: evictd-controller has no access to the storage, and can't read whether a node " +
			"still writes to it; to keep a node from being fenced, use the annotation evictd.io/fencing-paused")
	}
	return errors.New("remove the line: there are no policies by a node's access to its storage")
}

// policyDocument returns cluster-fence-config, nil if there is none.
func (p *parser) policyDocument() *document {
	right, misspelt := p.maps[policyName], p.maps[misspeltPolicyName]
	switch {
	case right == nil && misspelt == nil:
		return nil
	case right == nil:
		d := p.open(misspelt, configKey)
		d.warn(0, "", "the name is misspelt", "name it "+policyName)
		return d
	}
	d := p.open(right, configKey)
	if misspelt != nil {
		d.fail(0, "", "there is also a ConfigMap "+misspeltPolicyName, "delete that one")
	}
	return d
}

// policy reads cluster-fence-config. With a mistake in it, the policy is the default: dry run.
func (p *parser) policy() (fence.Policy, time.Duration) {
	c, ttl := fence.DefaultPolicy(), defaultHistoryTTL
	d := p.policyDocument()
	if d == nil {
		return c, ttl
	}
	keys := p.policyFields(&c, &ttl)
	known := make([]field, len(keys))
	for i := range keys {
		known[i] = keys[i].field
	}
	values := d.fields(known)
	for _, k := range keys {
		v, ok := values[k.name]
		if !ok {
			continue
		}
		if err := k.set(v.value); err != nil {
			d.fail(v.line, v.key, "is "+show(v.value), err.Error())
		}
	}
	t := &c.Timings
	if t.ProofTimeout.Duration <= t.ProofInterval.Duration {
		d.fail(values["proof_timeout"].line, "proof_timeout",
			fmt.Sprintf("is %s, which is too short for two readings that are %s apart", t.ProofTimeout.Duration, t.ProofInterval.Duration),
			"write a duration above proof_interval")
	}
	if t.TotalTimeout.Duration <= t.ProofTimeout.Duration {
		d.fail(values["total_timeout"].line, "total_timeout", fmt.Sprintf("is %s, which is too short for one attempt", t.TotalTimeout.Duration),
			fmt.Sprintf("write a duration above proof_timeout, which is %s", t.ProofTimeout.Duration))
	}
	switch {
	case t.Grace.Duration/2 <= renewInterval:
		d.warn(values["grace"].line, "grace", fmt.Sprintf("is %s: kubelets renew their Leases each %s, and a Lease older than half of this "+
			"counts as that of an unhealthy node: most of the time no node is fenced", t.Grace.Duration, renewInterval),
			fmt.Sprintf("write at least %s", shortGrace))
	case t.Grace.Duration < shortGrace:
		d.warn(values["grace"].line, "grace", fmt.Sprintf("is %s: a node that misses a few renewals of its Lease is fenced", t.Grace.Duration),
			fmt.Sprintf("write at least %s", shortGrace))
	}
	if d.broken {
		p.executor = ""
		d.warn(0, "", "is not used: the default policy applies, in dry run", "correct the problems of this ConfigMap")
		return fence.DefaultPolicy(), defaultHistoryTTL
	}
	return c, ttl
}

// warnPolicy reports what a policy means for the nodes that are configured.
func (p *parser) warnPolicy(c fence.Policy, nodes int) {
	if nodes == 0 {
		return
	}
	warn := func(key, message, remedy string) {
		p.problems = append(p.problems, Problem{Object: reference("ConfigMap", p.namespace, policyName), Key: key, Message: message, Remedy: remedy, Warning: true})
	}
	if p.maps[policyName] == nil && p.maps[misspeltPolicyName] == nil {
		warn("", "there is none: the default policy applies, in dry run", "create it, with mode=enforce to fence nodes")
	}
	switch {
	case c.MaxUnhealthy != nil && *c.MaxUnhealthy == 0:
		warn("max_unhealthy", "is 0, which allows no unhealthy node: no node is fenced", "write at least 1, or use percentage")
	case c.MaxUnhealthy != nil && nodes > 1 && int(*c.MaxUnhealthy) >= nodes:
		warn("max_unhealthy", fmt.Sprintf("is %d, which allows all %d nodes with a fence-config to be unhealthy: "+
			"a fault of the network can have all of them switched off", *c.MaxUnhealthy, nodes), "write less, or use percentage")
	case c.MaxUnhealthy == nil && c.Percentage == 0:
		warn("percentage", "is 0, which allows no unhealthy node: no node is fenced", "write at least 1, or use max_unhealthy")
	case c.MaxUnhealthy == nil && nodes > 1 && nodes*int(c.Percentage)/100 == 0:
		warn("percentage",
			fmt.Sprintf("is %d, which allows no unhealthy node of %d: in a cluster of this size no node is fenced", c.Percentage, nodes),
			fmt.Sprintf("write at least %d", (100+nodes-1)/nodes))
	}
	t := &c.Timings
	if least := 2*minJobDeadline + t.ProofInterval.Duration; p.jobs && t.ProofTimeout.Duration < least {
		warn("proof_timeout", fmt.Sprintf("is %s, in which two readings by Jobs that are %s apart may not be done",
			t.ProofTimeout.Duration, t.ProofInterval.Duration), fmt.Sprintf("write at least %s", least))
	}
	if c.Rate == 0 {
		warn("rate", "is 0, with which no fence begins", "write the time in which one fence may begin, such as 5m")
	}
	if c.Burst == 0 {
		warn("burst", "is 0, with which no fence begins", "write the number of fences that may begin at once, such as 2")
	}
}
