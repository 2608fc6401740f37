package systemd

// NamedFD is a descriptor that is stored with the service manager under a name, for the next
// run of this service.
type NamedFD struct {
	Notifier *Notifier
	Name     string
}

// Store stores the descriptor.
func (f NamedFD) Store(fd int) error { return f.Notifier.StoreFD(f.Name, fd) }

// Remove makes the service manager close the stored descriptor.
func (f NamedFD) Remove() error { return f.Notifier.RemoveFD(f.Name) }

// Stored returns the descriptor that an earlier run stored, nil if there is none. The caller
// owns it.
func (f NamedFD) Stored() *int {
	if fd := StoredFD(f.Name); fd >= 0 {
		return &fd
	}
	return nil
}
