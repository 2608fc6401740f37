package kube

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// maxPodSize is the largest message about a pod in bytes: a pod of 30 containers has
// about half of that.
const maxPodSize = 16 << 10

// encodePod returns the message about a pod. If it has more than maxPodSize bytes or
// maxParts parts, some parts are left out.
func encodePod(p *Pod) ([]byte, error) {
	line, err := encode(&Message{Pod: p})
	if err == nil && len(line) <= maxPodSize && p.parts() <= maxParts {
		return line, nil
	}
	small := *p
	small.Reduced = true
	for _, drop := range []func() error{
		func() error { small.Labels = nil; return nil },
		func() error { small.Tolerations, small.Volumes, small.EphemeralContainers = nil, nil, nil; return nil },
		func() error { return addUp(&small) },
	} {
		if err := drop(); err != nil {
			return nil, err
		}
		if line, err = encode(&Message{Pod: &small}); err == nil && len(line) <= maxPodSize && small.parts() <= maxParts {
			return line, nil
		}
	}
	return line, err
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
