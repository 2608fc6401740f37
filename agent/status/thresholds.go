package status

import "github.com/evictd/evictd/agent/evict"

// DescribeThresholds formats thresholds as the kubelet's flags do.
func DescribeThresholds(p *evict.Policy) []string {
	var list []string
	for _, t := range p.Thresholds {
		text := t.Signal.String() + "<" + t.Value.String()
		if !t.Hard() {
			text += " for " + t.Grace.String()
		}
		list = append(list, text)
	}
	return list
}
