package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// maxPodSize is the largest message about a pod, and the most memory that its facts may take,
// in bytes. A pod of 15 containers with requests and limits takes about that.
const maxPodSize = 16 << 10

// The memory in bytes that the parts of a pod take in addition to their texts, in both forms
// (Pod and evict.Pod), and that of a text in addition to its bytes.
const (
	podCost        = 1280
	containerCost  = 336
	amountCost     = 120
	tolerationCost = 192
	volumeCost     = 192
	ephemeralCost  = 192
	labelsCost     = 320
	labelCost      = 80
	textCost       = 12
)

// cost returns about how much memory the facts take, at least as much as they do.
func (p *Pod) cost() int {
	n := podCost
	text := func(texts ...string) {
		for _, t := range texts {
			n += len(t) + textCost
		}
	}
	amounts := func(list ...Amounts) {
		for _, a := range list {
			for _, t := range []string{a.CPU, a.Memory, a.EphemeralStorage} {
				if t != "" {
					n += len(t) + amountCost
				}
			}
		}
	}
	text(p.UID, p.Namespace, p.Name, p.PriorityClassName, p.Owner.Kind, p.Owner.Name, string(p.QoS), p.Exclusive, p.RestartPolicy, p.Phase)
	amounts(p.Resources.Requests, p.Resources.Limits, p.Overhead)
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for i := range cs {
			n += containerCost
			text(cs[i].Name)
			amounts(cs[i].Resources.Requests, cs[i].Resources.Limits)
		}
	}
	for _, t := range p.Tolerations {
		n += tolerationCost
		text(t.Key, t.Operator, t.Value, t.Effect)
	}
	for _, v := range p.Volumes {
		n += volumeCost
		text(v.Name, string(v.Type), v.Medium)
		amounts(Amounts{EphemeralStorage: v.SizeLimit})
	}
	for _, name := range p.EphemeralContainers {
		n += ephemeralCost
		text(name)
	}
	if len(p.Labels) > 0 {
		n += labelsCost
	}
	for key, value := range p.Labels {
		n += labelCost
		text(key, value)
	}
	return n
}

// encodePod returns the message about a pod, which evictd accepts. If the facts take more than
// maxPodSize bytes, in the message or in memory, some parts are left out.
func encodePod(p *Pod) ([]byte, error) {
	small := p.clean()
	for _, reduce := range []func() error{
		func() error { return nil },
		func() error { small.Labels = nil; return nil },
		func() error { small.Tolerations, small.Volumes, small.EphemeralContainers = nil, nil, nil; return nil },
		func() error { return addUp(small) },
	} {
		if err := reduce(); err != nil {
			return nil, err
		}
		if line, err := encode(&Message{Pod: small}); err == nil && len(line) <= maxPodSize && small.cost() <= maxPodSize {
			return line, nil
		}
		small.Reduced = true
	}
	return nil, fmt.Errorf("facts take more than %d bytes", maxPodSize)
}

// smallest returns the facts in their smallest form, with at most 4 KiB.
func (p *Pod) smallest() (*Pod, *evict.Pod, error) {
	small := *p
	small.Reduced = true
	small.Labels, small.Tolerations, small.Volumes, small.EphemeralContainers = nil, nil, nil, nil
	if err := addUp(&small); err != nil {
		return nil, nil, err
	}
	spec, err := small.parse()
	return &small, spec, err
}

// allContainers is the name of the one container of a pod whose containers were added up.
// No container of a pod can have this name, which contains a period.
const allContainers = "all.containers"

// addUp replaces the containers of a pod by one with the requests of all. Limits are left
// out: the kubelet enforces them.
func addUp(p *Pod) error {
	pod, err := p.convert()
	if err != nil {
		return err
	}
	all := Container{Name: allContainers}
	request := func(r signal.Resource) string {
		if n := pod.Request(r); n > 0 {
			return resource.NewQuantity(n, resource.BinarySI).String()
		}
		return ""
	}
	all.Resources.Requests.Memory = request(signal.Memory)
	all.Resources.Requests.EphemeralStorage = request(signal.EphemeralStorage)
	p.QoS = pod.QoSClass()
	p.Containers, p.InitContainers = []Container{all}, nil
	p.Resources, p.Overhead = Resources{}, Amounts{} // part of the sum
	return nil
}
