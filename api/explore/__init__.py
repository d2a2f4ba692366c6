from api.explore.likeness import Likeness as Likeness
