package kube

// KubeletReader reads the kubelet's configuration for evictd.
type KubeletReader interface {
	// ReadKubelet is called when evictd asks for the configuration: at the beginning of each
	// session, and when a kubelet was started. The reader answers with Feed.ReportKubelet, soon
	// and whenever the configuration has changed. It must not block.
	ReadKubelet(r *ReadKubelet)
}

// ReportKubelet sends the kubelet's configuration soon, or why it is not known. It never blocks.
// evictd refuses a configuration that is too long, which is then replaced by an error.
func (f *Feed) ReportKubelet(c *KubeletConfiguration) {
	answer := *c
	answer.Error = printable(c.Error)
	if err := answer.check(); err != nil {
		answer = KubeletConfiguration{Error: printable(err.Error())}
	} else if line, err := encode(&Message{Kubelet: &answer}); err != nil || len(line) > maxPodSize {
		answer = KubeletConfiguration{Error: "the kubelet's configuration is longer than evictd reads: shorten the maps in it"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kubelet = &answer
	f.notify()
}

// readKubelet passes on a request of evictd.
func (f *Feed) readKubelet(r *ReadKubelet) error {
	if err := r.check(); err != nil {
		return err
	}
	if f.KubeletReader == nil {
		f.ReportKubelet(&KubeletConfiguration{Error: "this evictd-kube does not read the kubelet's configuration"})
		return nil
	}
	f.KubeletReader.ReadKubelet(r)
	return nil
}
