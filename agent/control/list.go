package control

import "encoding/json"

// List is a slice that is [] in JSON where it is empty, so that a script can
// always iterate over it.
type List[T any] []T

// MarshalJSON writes the list, [] where it is nil.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}
