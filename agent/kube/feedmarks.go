package kube

// MarksHandler writes the marks of the Node object. Its method is called by one goroutine at a time, and must not block.
type MarksHandler interface {
	// SetMarks is called with each NodeMarks, and with nil at the end of a session: what evictd has asked for is not to
	// be written any more. The handler calls [Feed.ReportMarks] when it has written them, also if there was nothing to
	// write, and when it could not. It must not change m.
	SetMarks(m *NodeMarks)
}

// ReportMarks sends the answer to NodeMarks soon. It never blocks. Only the newest answer is sent.
func (f *Feed) ReportMarks(r *MarksReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marksReport = &MarksReport{Number: r.Number, Why: printable(r.Why)}
	wakeUp(f.reported)
}

// setMarks passes on NodeMarks.
func (f *Feed) setMarks(m *NodeMarks) error {
	if err := m.check(); err != nil || f.Marks == nil {
		return err
	}
	f.Marks.SetMarks(m)
	return nil
}

// endMarks withdraws the marks of a session, and drops its answer.
func (f *Feed) endMarks() {
	if f.Marks != nil {
		f.Marks.SetMarks(nil)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marksReport = nil
}
